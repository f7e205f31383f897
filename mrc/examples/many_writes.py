# SPDX-License-Identifier: Apache-2.0
"""Writes many small pieces in batches: `python -m mrc.examples.many_writes`."""

from __future__ import annotations

import asyncio
import time

import mrc

LOOPBACK = mrc.ContextConfig(interfaces=("127.0.0.1",), queues=mrc.config.Queues(sq_depth=256))
PIECE = 64
PIECES = 64 * 256
BATCH = 128


async def main() -> None:
    """Runs both ends; two batches are outstanding at any time."""
    data, inbox = bytes(range(256)) * (PIECE * PIECES // 256), bytearray(PIECE * PIECES)
    async with (
        mrc.open(LOOPBACK) as there,
        there.register(inbox, writable=True) as region,
        there.listen("127.0.0.1", 0, private=region.handle.to_dict()) as listener,
        mrc.open(LOOPBACK) as here,
        here.register(data) as source,
        here.connect("127.0.0.1", listener.port) as qp,
    ):
        remote = mrc.RemoteMemory.from_dict(qp.peer.private)
        start = time.perf_counter()
        earlier = None
        for first in range(0, PIECES, BATCH):
            places = [PIECE * index for index in range(first, first + BATCH)]
            batch = qp.post_scattered(
                source, remote, length=PIECE, src_offsets=places, dst_offsets=places
            )
            if earlier is not None:
                await earlier
            earlier = batch
        assert earlier is not None
        await earlier
        seconds = time.perf_counter() - start
    print(f"equal: {inbox == data}, {PIECES / seconds / 1000:.0f} thousand writes a second")


if __name__ == "__main__":
    asyncio.run(main())
