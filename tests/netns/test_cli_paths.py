# SPDX-License-Identifier: Apache-2.0
"""`mrc paths` as a process in a host of a test bed, while a path of it falls silent."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
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


def measured(hosts: Hosts, *words: str, enough: Callable[[Iterable[bool]], bool]) -> dict[str, Any]:
    """What it finds as soon as enough paths lose nothing: while h1 stands still, all of them do."""
    while True:
        told = printed("paths", hosts.start("h0", "paths", "h1", *words, "--json").ends(0))
        if enough(ev["quality"]["loss_share"] == 0 for ev in told["evs"]):
            return told


def test_locate__names_the_links_of_failing_paths(hosts: Hosts, bed: Testbed, healed: None) -> None:
    hosts.start("h1", "perf", "--server").until_listening()
    for target, links in {
        "t0:2.0>t1:2.1": ["uplink to t1:2.1", "t1:2.1>t0:2.1"],
        "h0>t0:1.0": ["this host's link of plane 1", "h1's link of plane 1"],
    }.items():
        bed.fail(target)
        told = measured(hosts, "--locate", enough=any)
        assert told["suspects"][0]["links"] == links
        assert told["suspects"][0]["working"] == 0
        bed.heal("all")
        lost = {ev["path"] for ev in told["evs"] if ev["quality"]["loss_share"] == 1}
        assert lost == ({"t1:2.1"} if "t1:2.1" in target else {"t1:1.0", "t1:1.1"})


@pytest.mark.default
def test_measure__shows_each_path(hosts: Hosts, bed: Testbed, healed: None) -> None:
    hosts.start("h1", "perf", "--server").until_listening()
    rows: list[str] = []
    while sum(" 0.0% " in row for row in rows) != 4:  # h1 may stand still
        shown = hosts.start("h0", "paths", "h1", "--measure", "0.2").ends(0)
        head, *rows = shown.splitlines()
        assert "loss" in head and "extra delay" in head and "reordered" in head
    told = measured(hosts, "--measure", "0.2", enough=all)
    for plane in (1, 2):
        found = [ev["quality"] for ev in told["evs"] if ev["plane"] == plane]
        assert min(each["extra_delay_ns"] for each in found) == 0
        assert all(each["jitter_ns"] > 0 and each["sent_probes"] % 3 == 0 for each in found)
