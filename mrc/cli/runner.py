# SPDX-License-Identifier: Apache-2.0
"""Runs a subcommand in an event loop, and shuts it down cleanly on a signal. Or it becomes another
program.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import signal
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import uvloop

from mrc.cli.output import Interrupted, print_error
from mrc.linux import system

logger = logging.getLogger("mrc.cli")


T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; SIGINT, SIGTERM and SIGHUP cancel it and raise Interrupted."""
    before = Interrupted.signals()
    guarded = _with_signals(work, list(before))
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        system.raise_descriptor_limit()
        gc.freeze()  # imported objects live until exit: the collector need not scan them
        return runner.run(guarded)
    finally:
        try:
            runner.close()
        except (OSError, RuntimeError) as error:  # it does not hide the error of the work
            # uvloop needs two descriptors to run once more, and the process may have none left.
            logger.debug("cannot close the event loop: %s", error)
            logging.getLogger("asyncio").disabled = True
        guarded.close()  # if it has not begun
        work.close()
        for signum, handler in before.items():  # uvloop leaves its own, which do nothing
            signal.signal(signum, handler)


async def _with_signals(work: Coroutine[Any, Any, T], wanted: list[int]) -> T:
    task = asyncio.create_task(work)
    signals: list[int] = []

    def stop(signum: int) -> None:
        signals.append(signum)
        task.cancel(f"stopped by {signal.Signals(signum).name}")

    for signum in wanted:
        asyncio.get_running_loop().add_signal_handler(signum, stop, signum)
    try:
        return await task
    except asyncio.CancelledError:
        if not signals:
            raise
        raise Interrupted(signals[0]) from None


# ---- Programs that a command becomes -------------------------------------------------------------


_NOT_RUNNABLE = 126
_NOT_FOUND = 127


def refusal(name: str, path: str | None = None) -> tuple[int, str] | None:
    """The exit code and the reason if a program cannot be run; None if it can."""
    if shutil.which(name, path=path) is not None:
        return None
    if os.sep in name and os.path.isdir(name):
        return _NOT_RUNNABLE, f"{name}: is a folder"
    if found := shutil.which(name, os.F_OK, path):
        return _NOT_RUNNABLE, f"{found}: is not executable: chmod +x {found}"
    return _NOT_FOUND, system.not_found(name)


def refused(prog: str, name: str, path: str | None = None) -> int:
    """Prints why a program cannot be run and returns the exit code; 0: it can."""
    found = refusal(name, path)
    if found is None:
        return 0
    code, why = found
    print_error(prog, why, code, as_json=False)
    return code


def become(prog: str, argv: list[str], environment: Mapping[str, str]) -> int:
    """Replaces this process by a program. Returns an exit code if the kernel refuses it."""
    try:
        os.execvpe(argv[0], argv, environment)
    except FileNotFoundError:
        code, why = _NOT_FOUND, "its interpreter is missing: see its first line"
    except OSError as error:
        code, why = _NOT_RUNNABLE, f"cannot be run: {error.strerror}"
    print_error(prog, f"{argv[0]}: {why}", code, as_json=False)
    return code
