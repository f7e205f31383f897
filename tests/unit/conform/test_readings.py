# SPDX-License-Identifier: Apache-2.0
"""The readings, and the page that is made from them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from project_text import ROOT

from mrc.conform.readings import BY_ID, READINGS, check, switches


def test_page__is_true() -> None:
    command = [sys.executable, str(ROOT / "tools" / "readings"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_readings__are_complete() -> None:
    ids = [each.id for each in READINGS]
    assert len(set(ids)) == len(ids)
    for each in READINGS:
        letters = [one.letter for one in each.alternatives]
        assert letters == list("ABCD"[: len(letters)]), each.id
        assert each.ours in letters, each.id
        assert all(one.sources for one in each.alternatives), each.id
        assert each.reason, each.id


def test_switches__are_other_alternatives_and_one_bit_each() -> None:
    assert [one.bit for _, one in switches()] == [1 << bit for bit in range(len(switches()))]
    for name, one in switches():
        reading = BY_ID[name.partition("_")[0]]
        assert one.letter != reading.ours
        assert name.replace("_", "-") in reading.names


def test_check__names_of_alternatives() -> None:
    for each in READINGS:
        check(each.choice)
    for name in ("C4", "C4-D", "C99-A", "c4-a", ""):
        with pytest.raises(ValueError, match="is no reading"):
            check(name)
