# SPDX-License-Identifier: Apache-2.0
"""`mrc sim` as typed."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from slowness import PATIENCE

from mrc.cli.main import main
from mrc.cli.schema import schema
from mrc.enums import CcKind
from mrc.sim.cli import sim


def test_sim__ends_in_the_middle_of_c_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    over = threading.Event()

    def run_trial(*_: object, **__: object) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # C code does not look for it
        os.kill(os.getpid(), signal.SIGINT)
        over.wait(PATIENCE)

    monkeypatch.setattr(sim, "run_trial", run_trial)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # uvloop has left its own
    assert main(["sim", "lossy-ev", "--set", "variants=[]", "--quiet"]) == 130
    over.set()
    assert capsys.readouterr().err == "mrc sim run: interrupted\n"


def test_schema__names_of_states() -> None:
    assert schema("sim run")["$defs"]["CcKind"]["enum"] == list(CcKind.__members__)
