# SPDX-License-Identifier: Apache-2.0
"""Runs a subcommand's coroutine on uvloop, and shuts it down cleanly on a signal."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Coroutine
from typing import Any

import uvloop

from mrc.cli.exits import Interrupted
from mrc.errors import ConfigError
from mrc.exchange.admission import raise_descriptor_limit


def run_async(work: Coroutine[Any, Any, int]) -> int:
    """The result of `work`; SIGINT, SIGTERM and SIGHUP cancel it and raise Interrupted."""
    try:
        raise_descriptor_limit()
    except ConfigError:
        work.close()
        raise
    gc.freeze()  # imported objects live until exit: the collector need not scan them
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_with_signals(work))


async def _with_signals(work: Coroutine[Any, Any, int]) -> int:
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
