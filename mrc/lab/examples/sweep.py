# SPDX-License-Identifier: Apache-2.0
"""How size, MTU and loss decide about goodput: `python -m mrc.lab.examples.sweep`.

Each MTU gets a test bed with two planes of 200 Mbit/s, of which one then loses packets. The table
is the output, and sweep.svg the plot. Needs matplotlib: `pip install 'mrc-transport[plot]'`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext

import mrc.perf
import mrc.testbed

SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 22)
MTUS = (1500, 9000)
LOSSES = (0.0, 0.01, 0.05)


async def sweep(seconds: float) -> AsyncIterator[tuple[int, float, mrc.perf.Perf]]:
    """MTU, loss, and the result of each measurement, which takes so many seconds."""
    for mtu in MTUS:
        async with (
            mrc.testbed.up(planes=2, rate="200mbit", mtu=mtu) as bed,
            bed.host("h0").context() as here,
            bed.host("h1").context() as there,
            mrc.perf.serve(context=there),
        ):
            for loss in LOSSES:
                async with bed.fail("plane:1", loss=loss) if loss else nullcontext():
                    for size in SIZES:
                        found = mrc.perf.measure("h1", size=size, seconds=seconds, context=here)
                        yield mtu, loss, await found


async def main(seconds: float = 1.0, file: str = "sweep.svg") -> None:
    """Prints the table and draws the plot."""
    from matplotlib.figure import Figure

    lines: dict[str, list[float]] = {}
    async for mtu, loss, found in sweep(seconds):
        (test,) = found.results
        mbps = test.goodput_bits_per_second / 1e6
        print(f"MTU {mtu}, loss {loss:4.0%}, {test.plan.message_bytes:8} B: {mbps:6.1f} Mbit/s")
        lines.setdefault(f"MTU {mtu}, loss {loss:.0%}", []).append(mbps)
    figure = Figure()
    axes = figure.subplots()
    for label, goodput in lines.items():
        axes.semilogx(SIZES, goodput, label=label, marker="o")
    axes.set(xlabel="bytes in a message", ylabel="Mbit/s", ylim=0)
    axes.legend()
    figure.savefig(file)


if __name__ == "__main__":
    asyncio.run(main())
