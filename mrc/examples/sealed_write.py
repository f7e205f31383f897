# SPDX-License-Identifier: Apache-2.0
"""Both ends prove their keys and seal their packets: `python -m mrc.examples.sealed_write`."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import mrc


def config(folder: Path, allow: str = "", peer: str = "") -> mrc.ContextConfig:
    """A Context with the key in this folder, which is made when it is missing."""
    security = mrc.Security(
        identity=folder / "identity.pem", allow=(allow,) if allow else (), peer=peer
    )
    return mrc.ContextConfig(interfaces=("127.0.0.1",), security=security)


def fingerprint(folder: Path) -> str:
    """The fingerprint of the key in this folder, for the configuration of the other host."""
    return mrc.Security(identity=folder / "identity.pem").load_identity().fingerprint


async def main(there_folder: Path, here_folder: Path) -> None:
    """Runs both ends."""
    inbox = bytearray(64)
    async with (
        mrc.open(config(there_folder, allow=fingerprint(here_folder))) as there,
        there.register(inbox, writable=True) as region,
        there.listen("127.0.0.1", 0, private=region.handle.to_dict()) as listener,
        mrc.open(config(here_folder, peer=fingerprint(there_folder))) as here,
        here.register(b"hello, sealed") as message,
        here.connect("127.0.0.1", listener.port) as qp,
        listener.accept() as peer,
    ):
        assert peer.peer.identity == fingerprint(here_folder)
        await qp.write(message, mrc.RemoteMemory.from_dict(qp.peer.private))
        print(inbox[: message.length].decode(), f"({qp.seal.name})")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        asyncio.run(main(Path(a), Path(b)))
