# SPDX-License-Identifier: Apache-2.0
"""Programs of contenders: their stdin, their ends and their last words. Here without a bed."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import peers
import pytest
from end import BenchError, last_words, start_once, stop, wait_for, words_of
from failover_run import Contender, _first_traffic


class Here:
    """In place of a bed: commands run as they are."""

    def command(self, host: int, argv: list[str]) -> tuple[list[str], dict[str, str]]:
        return argv, dict(os.environ)


def started(code: str) -> Any:
    return start_once(Here(), 0, [sys.executable, "-c", code])


def test_start_once__stdin_is_a_terminal_wherever_the_benchmark_runs() -> None:
    """Also where stdin is closed, as for a job of cron. Otherwise the ucx_perftest of Debian 13
    expects mpirun.
    """
    before = os.dup(0)
    os.close(0)
    try:
        printed = wait_for(started("import os; print(os.isatty(0))")).output
    finally:
        os.dup2(before, 0)
        os.close(before)
    assert printed == "True\n"


def test_words_of__a_program_that_ends_at_once() -> None:
    process = started("raise SystemExit('cannot run here')")
    process.wait()
    assert words_of(process) == "cannot run here"
    with started("import time; time.sleep(600)") as running:
        assert words_of(running) == ""
        stop(running)


def test_wait_for__raises_the_last_words() -> None:
    with pytest.raises(BenchError, match=r"^cannot run here$"):
        wait_for(started("raise SystemExit('cannot run here')"))


def test_last_words__rulers_say_nothing() -> None:
    assert last_words("one\ncannot run: two \n-----\n\n", 1) == "cannot run: two"
    assert last_words("-----\n", 3) == "ended with exit code 3"


def test_result_of__output_without_a_result() -> None:
    sent: Any = SimpleNamespace(output="error - no route\n")
    with pytest.raises(BenchError, match="printed no result: error - no route"):  # noqa: SIM117
        with peers.result_of(sent):
            [].pop()


def test_first_traffic__an_end_that_ends_before_says_why() -> None:
    """Instead of a wait for traffic that cannot come."""

    class Ended(Contender):
        def words(self) -> str:
            return "cannot run here"

        def start(self, *_: object) -> None: ...
        def finish(self) -> Any: ...

    bed: Any = SimpleNamespace(sent_bytes=lambda: [0])
    with pytest.raises(BenchError, match="cannot run here"):
        _first_traffic(Ended(bed))
