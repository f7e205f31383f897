# SPDX-License-Identifier: Apache-2.0
"""What a run must not show, whatever its seed draws."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from virtual.loop import PROGRAM

if TYPE_CHECKING:
    from virtual.world import World

_FOLDER = re.compile(r"/\S*/mrc-virtual-[^/]*/")


class Audit:
    """Collects what is wrong with one run; it goes on, so that all of it is seen."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.story: list[str] = []
        self.repeats = True
        """a second run has the same packets at the same times; not so with TLS, which draws its own
        random numbers, so that its messages differ by some bytes"""

    def describe(self, scenario: Any) -> None:
        """The scenario, for people."""
        self.result(str(scenario))

    def result(self, line: str) -> None:
        """What came out, for people and for the comparison of two runs."""
        self.story.append(_FOLDER.sub("", line))

    def check(self, condition: object, otherwise: str) -> None:
        """Records a fault unless the condition holds."""
        if not condition:
            self.wrong.append(otherwise)

    def nothing_left(self, world: World) -> None:
        """After the programs have ended: no task, no socket. `World.complaints` has the rest."""
        left = [task for task in asyncio.all_tasks(world.loop) if _runs(world, task)]
        self.check(not left, f"tasks are left: {left}")
        self.check(world.kernel.open_sockets == 0, "sockets of csrc/io are left open")
        open_ends = [each for each in world.tcp.open if each.program.alive]
        self.check(not open_ends, f"{len(open_ends)} TCP connections are left open")


def _runs(world: World, task: asyncio.Task[Any]) -> bool:
    """Whether it is not done, and not one of a program that was killed."""
    program = world.loop.contexts[task].get(PROGRAM)
    return not task.done() and (program is None or program.alive)
