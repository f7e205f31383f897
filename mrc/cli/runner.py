# SPDX-License-Identifier: Apache-2.0
"""Runs a subcommand's coroutine on uvloop, and shuts it down cleanly on a signal."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import uvloop

from mrc.cli.exits import Interrupted
from mrc.connect.admission import raise_descriptor_limit

logger = logging.getLogger("mrc.cli")


T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; SIGINT, SIGTERM and SIGHUP cancel it and raise Interrupted."""
    guarded = _with_signals(work)
    try:
        raise_descriptor_limit()
        gc.freeze()  # imported objects live until exit: the collector need not scan them
        with _runner() as runner:
            return runner.run(guarded)
    finally:
        guarded.close()  # if it has not begun
        work.close()


@contextmanager
def _runner() -> Iterator[asyncio.Runner]:
    """A runner whose end does not hide the error of the work."""
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        yield runner
    finally:
        try:
            runner.close()
        except (OSError, RuntimeError) as error:
            # uvloop needs two descriptors to run once more, and the process may have none left.
            logger.debug("cannot close the event loop: %s", error)
            logging.getLogger("asyncio").disabled = True


async def _with_signals(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.create_task(work)
    signals: list[int] = []

    def stop(signum: int) -> None:
        signals.append(signum)
        task.cancel(f"stopped by {signal.Signals(signum).name}")

    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores SIGHUP: keep that
        wanted.append(signal.SIGHUP)
    for signum in wanted:
        asyncio.get_running_loop().add_signal_handler(signum, stop, signum)
    try:
        return await task
    except asyncio.CancelledError:
        if not signals:
            raise
        raise Interrupted(signals[0]) from None
