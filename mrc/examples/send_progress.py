# SPDX-License-Identifier: Apache-2.0
"""Sends a file of 64 MiB over loopback, and draws a bar of its progress.

python -m mrc.examples.send_progress
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import mrc
import mrc.transfer

LOOPBACK = mrc.ContextConfig(interfaces=("127.0.0.1",))


def draw(progress: mrc.transfer.Progress) -> None:
    """One line that is drawn again and again."""
    share = progress.done_bytes / progress.bytes if progress.bytes else 0.0
    rate = f"{progress.rate_bits_per_second / 1e6:.0f} Mbit/s"
    print(f"\r{share:4.0%} {'#' * int(30 * share):30} {rate:>11}", end="", flush=True)


async def main(file: Path, inbox: Path) -> None:
    """Runs both ends."""
    async with mrc.transfer.receive(inbox, port=0, once=True, config=LOOPBACK) as receiver:
        result = await mrc.transfer.send(
            file, "127.0.0.1", port=receiver.port, config=LOOPBACK, on_progress=draw
        )
        print(f"\nsent {result.files[0].name}: {result.bytes} bytes")
        async for received in receiver:  # ends after this one sender
            print("stored as", received.result().files[0].name)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder, "disk.img")
        image.write_bytes(bytes(64 << 20))
        asyncio.run(main(image, Path(folder, "inbox")))
