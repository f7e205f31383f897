# SPDX-License-Identifier: Apache-2.0
"""Shows the paths of a QP, denies one of them, and prints the event of this change.

python -m mrc.examples.watch_paths
"""

from __future__ import annotations

import asyncio

import mrc

TWO_PLANES = mrc.ContextConfig(
    interfaces=("127.0.0.1", "127.0.0.2"), spraying=mrc.config.Spraying(evs_per_pair=2)
)


async def main() -> None:
    """Runs both ends, with two planes over loopback."""
    async with (
        mrc.open(TWO_PLANES) as there,
        there.listen("127.0.0.1", 0) as listener,
        mrc.open(TWO_PLANES) as here,
        here.connect("127.0.0.1", listener.port) as qp,
    ):
        for ev in await qp.evs():
            probe = await qp.probe_ev(ev.index, timeout=1)
            rtt = "no answer" if probe.rtt_ns is None else f"{probe.rtt_ns / 1000:.0f} us"
            print(f"plane {ev.plane}  {ev.path}  {ev.state.name}  {rtt}")
        events = qp.events(timeout=1)
        (denied,) = await qp.deny(0)
        event = await anext(events)
        print(f"EV {denied}: {event}")
        await qp.allow(denied)


if __name__ == "__main__":
    asyncio.run(main())
