# SPDX-License-Identifier: Apache-2.0
"""Probes every path once a second, and denies those that lose probes. Drains planes and switches.

python -m mrc.examples.controller [HOST [PATTERN...]], where HOST runs `mrc recv`; alone, over
loopback. A PATTERN such as 't1:2.*' or 't1:1.0' names paths that get no traffic.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from fnmatch import fnmatch

import mrc

TWO_PLANES = mrc.ContextConfig(
    interfaces=("127.0.0.1", "127.0.0.2"), spraying=mrc.config.Spraying(evs_per_pair=2)
)
PROBES = 8  # of each path in a round
RECENT = 5 * PROBES  # probes of a path that count
WORKING = (mrc.EvState.GOOD, mrc.EvState.SKIP)
TOO_MANY = 8  # more of these are lost than of the plane's best path: the path is denied


class Controller:
    """Denies paths for all QPs of a profile."""

    def __init__(self, context: mrc.Context) -> None:
        self.profile = context.ev_profile("controlled")
        self.profile.to_offline()
        self.profile.to_online()
        self.lost: dict[str, deque[bool]] = {}  # by path, the newest probes

    async def drain(self, qp: mrc.QP, *patterns: str) -> list[str]:
        """Takes the traffic off these paths, for maintenance; packets in flight still arrive.

        Raises ValueError rather than take the last path that works.
        """
        evs = await qp.evs()
        drained = {ev.path for ev in evs if any(fnmatch(ev.path, each) for each in patterns)}
        if not any(ev.path not in drained for ev in evs if ev.state in WORKING):
            raise ValueError(f"{', '.join(patterns)}: no other path works")
        await self.profile.deny(*sorted(drained))
        return sorted(drained)

    async def run(self, qp: mrc.QP, *, rounds: int | None = None) -> None:
        """Until the peer closes the QP, or for some rounds."""
        while rounds != 0 and qp.ended is None:
            used = {ev.index: ev for ev in await qp.evs() if ev.state is not mrc.EvState.DENIED}
            for _ in range(PROBES):
                for probe in await qp.probe_evs(used, timeout=0.1):
                    path = self.lost.setdefault(used[probe.index].path, deque(maxlen=RECENT))
                    path.append(not probe.answered)
            if qp.ended is None:
                await self.judge(list(used.values()))
            rounds = None if rounds is None else rounds - 1
            await asyncio.sleep(1)

    async def judge(self, used: list[mrc.EvInfo]) -> None:
        """Answers return on any path of the plane, and may be lost there: the best path of a plane
        shows what its way back loses.
        """
        lost = {ev.path: sum(self.lost[ev.path]) for ev in used}
        best: dict[int, int] = {}
        for ev in used:
            best[ev.plane] = min(best.get(ev.plane, RECENT), lost[ev.path])
        losing = [ev.path for ev in used if lost[ev.path] > best[ev.plane] + TOO_MANY]
        if losing:
            await self.profile.deny(*losing)
            print("denied", *losing)
        print(f"paths in use: {len(used) - len(losing)}", flush=True)


async def control(host: str, *drained: str) -> None:
    """Controls the paths to a host, and drains some."""
    async with mrc.open() as here:
        controller = Controller(here)
        private = {"service": "paths"}  # such a QP of mrc recv only probes; it ends after a while
        while True:
            async with here.connect(host, private=private, ev_profile=controller.profile) as qp:
                if drained:
                    print("drained", *await controller.drain(qp, *drained), flush=True)
                await controller.run(qp)


async def demonstrate() -> None:
    """Runs both ends for two rounds, with two planes over loopback."""
    async with (
        mrc.open(TWO_PLANES) as there,
        there.listen("127.0.0.1", 0) as listener,
        mrc.open(TWO_PLANES) as here,
    ):
        controller = Controller(here)
        port, profile = listener.port, controller.profile
        async with here.connect("127.0.0.1", port, ev_profile=profile) as qp:
            await controller.run(qp, rounds=2)


if __name__ == "__main__":
    asyncio.run(control(*sys.argv[1:]) if len(sys.argv) > 1 else demonstrate())
