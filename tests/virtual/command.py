# SPDX-License-Identifier: Apache-2.0
"""The commands of `mrc` on simulated hosts, as typed."""

from __future__ import annotations

import asyncio
import shlex
import signal
import traceback
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import mrc.cli.runner
from mrc import products
from mrc.cli.main import build_parser
from mrc.cli.output import Interrupted, UsageError, exit_code
from mrc.errors import MrcError
from virtual.host import Host
from virtual.world import World


@dataclass
class Command:
    """A command that runs, or has run, on a host."""

    host: Host
    line: str
    task: asyncio.Task[int] = field(init=False)
    error: BaseException | None = None
    """why it failed: a user gets one line about it"""
    crashed: str = ""
    """the traceback that a user must never see"""
    signals: list[int] = field(default_factory=list)

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs, and after a kill."""
        ended = self.task.done() and not self.task.cancelled()
        return self.task.result() if ended else None

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.signals.append(signal.SIGINT)
        self.task.cancel()

    async def run(self) -> int:
        """As `mrc.cli.main.main`."""
        words = shlex.split(self.line)
        try:
            args = build_parser(words[:1]).parse_args(words)
            args.command_line = words
            return int(await args.run(args))
        except asyncio.CancelledError:
            if not self.signals:
                raise
            self.error = Interrupted(self.signals[0])
        except (UsageError, MrcError, OSError) as error:
            self.error = error
        except Exception as error:
            self.error, self.crashed = error, traceback.format_exc()
        return exit_code(self.error)

    def __str__(self) -> str:
        why = f": {type(self.error).__name__}: {self.error}" if self.error else ""
        return f"{self.host.name}: mrc {self.line}: {self.code}{why}"


def start(host: Host, line: str) -> Command:
    """Starts `mrc LINE`."""
    made = Command(host, line)
    made.task = host.start(made.run())
    return made


def use_commands(world: World, *names: str) -> None:
    """Lets the commands give their coroutine to `start` in place of running a loop of their own."""
    for name in names:
        module = import_module(products.COMMANDS[name])
        module = module if hasattr(module, "run_async") else mrc.cli.runner
        world.replace(module, "run_async", _same)


def _same(work: Any) -> Any:
    return work
