# SPDX-License-Identifier: Apache-2.0
"""The example hello without asyncio: `python -m mrc.examples.blocking_write`."""

from __future__ import annotations

import mrc
from mrc import blocking

LOOPBACK = mrc.ContextConfig(interfaces=("127.0.0.1",))


def main() -> None:
    """Runs both ends."""
    inbox = bytearray(64)
    with (
        blocking.open(LOOPBACK) as there,
        there.register(inbox, writable=True) as region,
        there.listen("127.0.0.1", 0, private=region.handle.to_dict()) as listener,
        blocking.open(LOOPBACK) as here,
        here.register(b"hello without asyncio") as message,
        here.connect("127.0.0.1", listener.port) as qp,
        listener.accept(timeout=5) as peer,
    ):
        qp.write(message, mrc.RemoteMemory.from_dict(qp.peer.private))
        qp.write(imm=message.length)
        immediate = next(peer.immediates(timeout=5))
        print(inbox[: immediate.imm].decode())


if __name__ == "__main__":
    main()
