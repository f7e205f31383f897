# SPDX-License-Identifier: Apache-2.0
"""`mrc paths` as a process in a host of a test bed, while a path of it falls silent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from netns.processes import Hosts, Mrc
from printed import printed

from mrc.testbed.bed import Testbed


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    with Testbed(f"paths-{os.getpid()}", planes=2, t1=2) as bed:
        yield bed


def states(shown: dict[str, Any]) -> dict[str, str]:
    for ev in shown["evs"]:
        assert ev["probe"]["answered"] == (ev["state"] == "GOOD")
    return {ev["path"]: ev["state"] for ev in shown["evs"]}


def next_look(watch: Mrc) -> dict[str, str]:
    assert watch.process.stdout is not None
    return states(printed("paths", watch.process.stdout.readline()))


def test_watch__calls_no_path_good_that_does_not_answer(
    hosts: Hosts, bed: Testbed, healed: None
) -> None:
    hosts.start("h1", "perf", "--server").until_listening()
    watch = hosts.start("h0", "paths", "h1", "--watch", "-i", "0.05", "--json", "--check")
    assert set(next_look(watch).values()) == {"GOOD"}
    bed.fail("t1:2.1")
    while set((seen := next_look(watch)).values()) == {"GOOD"}:
        pass
    assert seen == {"t1:1.0": "GOOD", "t1:1.1": "GOOD", "t1:2.0": "GOOD", "t1:2.1": "NO_ANSWER"}
    watch.ends(1)
    (line,) = watch.lines
    assert line.startswith("mrc paths: 1 of 4 paths to h1 do not answer: t1:2.1 (")


def test_check__the_host_has_no_link(hosts: Hosts, bed: Testbed, healed: None) -> None:
    """The QP knows nothing of the plane: its configuration does."""
    hosts.start("h1", "perf", "--server").until_listening()
    bed.fail("link:h0.2", mode="down")
    check = hosts.start("h0", "paths", "h1", "--check")
    shown = check.ends(1)
    assert "h1: 1 of 2 planes and 2 of 2 paths are good" in shown
    assert check.lines == ["mrc paths: this host lacks configured ports: p2 is down"]
    look = hosts.start("h0", "paths", "h1", "--check", "--json")
    assert printed("paths", look.ends(1))["missing"] == ["p2 is down"]


def test_check__exit_code(hosts: Hosts, bed: Testbed, healed: None) -> None:
    hosts.start("h1", "perf", "--server").until_listening()
    hosts.start("h0", "paths", "h1", "--check").ends(0)
    bed.fail("t1:2.0")
    shown = states(printed("paths", hosts.start("h0", "paths", "h1", "--check", "--json").ends(1)))
    assert shown.pop("t1:2.0") == "ASSUMED_BAD" and set(shown.values()) == {"GOOD"}
