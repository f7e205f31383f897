# SPDX-License-Identifier: Apache-2.0
"""mrc perf, mrc paths and mrc doctor as processes, in two hosts of a test bed with two planes of
200 Mbit/s each.
"""

from __future__ import annotations

import platform
import signal
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from netns.processes import Hosts, Mrc
from printed import printed

from mrc import doctor
from mrc.doctor import State
from mrc.linux import netns, system
from mrc.testbed import findings
from mrc.testbed.bed import Testbed

from .conftest import HAS_USERS, bed_of

PLANES = 2
CAPACITY = PLANES * 200e6


bed = bed_of(planes=PLANES, t1=2, rate="200mbit")


def server(hosts: Hosts, *options: str) -> Mrc:
    return hosts.start("h1", "perf", "--server", *options).until_listening()


def measure(hosts: Hosts, *options: str) -> dict[str, Any]:
    done = hosts.start("h0", "perf", "h1", "--json", *options).ends(0)
    result = printed("perf", done)
    assert result["schema"] == 1 and result["peer"] == "h1" and result["planes"] == [1, 2]
    return result


@pytest.mark.default
def test_perf__both_ends_count_the_same(hosts: Hosts) -> None:
    waiting = server(hosts, "--one-off", "--json")
    # Not for a time: writes that a peer which stands still leaves unanswered are not waited for.
    words = ("-n", "64M", "-i", "0.1", "--plane-shares", "equal")
    (result,) = measure(hosts, *words)["results"]
    served = printed("perf --server", waiting.ends(0))
    sent = [plane["sent_bytes"] for plane in result["client"]["planes"]]
    assert len(sent) == PLANES and min(sent) > 0
    assert result["intervals"] and 0 < result["goodput_bits_per_second"] < CAPACITY
    assert result["server"]["received_bytes"] == result["client"]["written_bytes"]
    arrived = [plane["received_bytes"] for plane in result["server"]["planes_received"]]
    assert sum(arrived) == result["server"]["received_bytes"]
    assert len(arrived) == PLANES and min(arrived) > 0
    assert (served["plan"], served["server"]) == (result["plan"], result["server"])


def test_perf__half_round_trip(hosts: Hosts) -> None:
    waiting = server(hosts, "--one-off")
    # Not for a time, in which a peer that stands still answers nothing.
    (result,) = measure(hosts, "--lat", "-n", "200", "--integrity", "udp")["results"]
    (line,) = waiting.ends(0).splitlines()
    assert "ping-pong forward, 2 B messages, 1 QP" in line
    latency = result["client"]["latency"]
    assert 0 < latency["min_ns"] <= latency["p50_ns"] <= latency["p99_ns"] <= latency["max_ns"]


@pytest.mark.slow
def test_perf__a_slow_plane_is_named(hosts: Hosts, bed: Testbed, healed: None) -> None:
    server(hosts)
    bed.fail("plane:2", rate_share=0.1)
    client = hosts.start("h0", "perf", "h1", "--json", "--bins", "-n", "72M", "-i", "1")
    (result,) = printed("perf", client.ends(0))["results"]
    slow = [each for each in result["client"]["changes"]["shares"] if each["slow"]]
    assert slow and all(each["plane"] == 2 and each["percent"] < 50 for each in slow)
    assert {each["reason"] for each in slow} == {"DELIVERY"}
    first, second = result["client"]["planes"]
    assert second["carried_percent"] < 20 and second["carried_percent"] < first["carried_percent"]
    marks = [interval["planes"][1] for interval in result["intervals"]]
    assert any(mark["slow"] or mark["suspended"] for mark in marks)
    assert not any(interval["planes"][0]["slow"] for interval in result["intervals"])
    assert f"mrc perf: plane 2 carried {second['carried_percent']}% of the others" in client.lines


def test_top__of_a_host_and_of_all_on_this_machine(hosts: Hosts) -> None:
    serving = server(hosts, "--top")
    client = hosts.start("h0", "perf", "h1", "--json", "-t", "600")

    def carries(end: Mrc, rate: str, *seen_by: str) -> dict[str, Any]:
        """What `mrc top` shows of it, as soon as it carries something: before, it may stand still,
        for so long that it is missing.
        """
        while True:
            assert client.process.poll() is None, client.lines
            top = hosts.start("h0", "top", *seen_by, "--json", "-i", "0.5")
            seen = {each["pid"]: each for each in printed("top", top.ends(0))["endpoints"]}
            shown: dict[str, Any] = seen.get(end.process.pid, {"qps": []})
            bits_per_second = sum(qp[rate] for qp in shown["qps"])
            if bits_per_second > 0:
                return shown

    h0 = carries(client, "acknowledged_bits_per_second", "--local")
    h1 = [carries(serving, "received_bits_per_second", by) for by in ("--local", "h1")]
    client.process.send_signal(signal.SIGINT)
    client.ends(130)
    assert [each["host"] for each in (h0, *h1)] == ["h0", "h1", "h1"]
    evs = [ev for qp in h0["qps"] for ev in qp["evs"]]
    assert {ev["path"] for ev in evs} == {"t1:1.0", "t1:1.1", "t1:2.0", "t1:2.1"}


def test_perf__interrupted(hosts: Hosts) -> None:
    server(hosts)
    client = hosts.start("h0", "perf", "h1", "--json-stream", "-i", "0.1", "-t", "600")
    assert client.process.stdout is not None
    lines = (printed("perf --json-stream", line) for line in client.process.stdout)
    assert next(lines)["event"] == "start"
    for interval in lines:
        assert interval["event"] == "interval"
        if interval["written_bytes"]:
            break
    client.process.send_signal(signal.SIGINT)
    last = [printed("perf --json-stream", line) for line in client.ends(130).splitlines()]
    assert last[-1]["event"] == "end"
    (result,) = last[-1]["results"]
    assert result["interrupted"] and result["goodput_bits_per_second"] > 0
    machine = last[-1]["machine"]
    assert machine["arguments"] == ["perf", "h1", "--json-stream", "-i", "0.1", "-t", "600"]
    assert (machine["host"], machine["kernel"]) == ("h0", platform.release())
    started = datetime.fromisoformat(machine["started_at"])
    assert timedelta() < datetime.now(UTC) - started < timedelta(minutes=10)


def test_perf__nobody_there(hosts: Hosts) -> None:
    client = hosts.start("h0", "perf", "h1", "-J")
    assert printed("perf", client.ends(3))["exit_code"] == 3
    start = "start its program there, such as mrc recv or mrc perf --server"
    assert client.complaint() == f"mrc perf: h1: no program listens on TCP port 4791: {start}"


def test_perf__no_perf_server(hosts: Hosts, tmp_path: Path) -> None:
    hosts.recv(tmp_path)
    client = hosts.start("h0", "perf", "h1", "-t", "1")
    client.ends(1)
    assert client.complaint().endswith("serves 'files', not 'perf': is it the wrong port?")


# ---- mrc paths, while a path falls silent --------------------------------------------------------


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


def test_why__of_planes_that_the_configuration_defines(hosts: Hosts) -> None:
    hosts.start("h1", "perf", "--server").until_listening()
    look = hosts.start("h0", "paths", "h1", "--why", "--json")
    pairs = printed("paths", look.ends(0))["pairs"]
    states = {(each["nic"], each["peer_nic"]): (each["plane"], each["state"]) for each in pairs}
    used, apart = {(f"p{n}", f"p{n}"): (n, "USED") for n in (1, 2)}, (None, "UNFIT")
    assert states == used | {("p1", "p2"): apart, ("p2", "p1"): apart}


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


# ---- mrc doctor on this machine, which supports test beds, since these tests run -----------------


@pytest.mark.default
def test_doctor__finds_what_these_tests_use() -> None:
    found = {each.name: each.state for each in [*doctor.examine_host(), *findings.examine()]}
    real = ("point to point",) if HAS_USERS else ()  # the SRv6 source address needs real root
    for name in (*real, "veth", "seg6", "uSIDs", "packet ring", "tbf", "nftables"):
        assert found[name] is State.OK, found
    assert {findings.NEAR, findings.FAR}.isdisjoint(netns.names())


def test_probe__tries_everything_that_doctor_explains() -> None:
    assert set(findings.kernel()) == set(findings._NEEDS)


def test_doctor__says_the_same_with_an_empty_path(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = {each.name: each.state for each in findings.examine()}
    monkeypatch.setenv("PATH", "")
    assert {each.name: each.state for each in findings.examine()} == usual


@pytest.mark.parametrize("name", findings.PROGRAMS)
def test_doctor__without_a_program_names_its_package(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in system.PACKAGES.keys() - {name}:
        if (path := system.find(each)) is not None:
            (tmp_path / each).symlink_to(path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(system, "SYSTEM_FOLDERS", str(tmp_path))
    found = findings.examine()
    assert [each for each in found if "No such file" in each.found] == []
    (row,) = (each for each in found if each.name == f"program {name}")
    assert (row.state, row.remedy) == (State.MISSING, f"apt-get install {system.PACKAGES[name]}")
