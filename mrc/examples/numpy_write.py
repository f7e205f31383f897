# SPDX-License-Identifier: Apache-2.0
"""Writes a NumPy array into an array of the peer without an intermediate copy.

    python -m mrc.examples.numpy_write

A torch tensor in CPU memory works too.
"""

from __future__ import annotations

import asyncio
import sys
import time

import mrc

try:
    import numpy
except ImportError:
    sys.exit("numpy is not installed: pip install numpy")

LOOPBACK = mrc.ContextConfig(interfaces=("127.0.0.1",))
ELEMENTS = 4 << 20


async def main() -> None:
    """Runs both ends."""
    source = numpy.random.default_rng(1).standard_normal(ELEMENTS, dtype=numpy.float32)
    target = numpy.zeros_like(source)
    async with (
        mrc.open(LOOPBACK) as there,
        there.register(target, writable=True) as region,
        there.listen("127.0.0.1", 0, private=region.handle.to_dict()) as listener,
        mrc.open(LOOPBACK) as here,
        here.register(source) as array,
        here.connect("127.0.0.1", listener.port) as qp,
    ):
        start = time.perf_counter()
        await qp.write(array, mrc.RemoteMemory.from_dict(qp.peer.private), timeout=60)
        seconds = time.perf_counter() - start
    print(f"equal: {(source == target).all()}, {source.nbytes * 8 / seconds / 1e9:.2f} Gbit/s")


if __name__ == "__main__":
    asyncio.run(main())
