# SPDX-License-Identifier: Apache-2.0
"""Writes into the peer's memory, then notifies the peer: `python -m mrc.examples.hello`."""

from __future__ import annotations

import asyncio

import mrc

LOOPBACK = mrc.ContextConfig(interfaces=("127.0.0.1",))


async def main() -> None:
    """Runs both ends."""
    inbox = bytearray(64)
    async with (
        mrc.open(LOOPBACK) as there,
        there.register(inbox, writable=True) as region,
        there.listen("127.0.0.1", 0, private=region.handle.to_dict()) as listener,
        mrc.open(LOOPBACK) as here,
        here.register(b"hello over MRC") as message,
        here.connect("127.0.0.1", listener.port) as qp,
        listener.accept() as peer,
    ):
        remote = mrc.RemoteMemory.from_dict(qp.peer.private)
        await qp.write(message, remote)  # returns when the peer has all bytes
        await qp.write(imm=message.length)  # notifies the peer, with a 32-bit number
        immediate = await anext(peer.immediates())
        print(inbox[: immediate.imm].decode())


if __name__ == "__main__":
    asyncio.run(main())
