# SPDX-License-Identifier: Apache-2.0
"""The traffic of scenarios between real hosts: four of them, in two planes; a small `mrc demo`.

h0 -+- t0:P.0 --+-- t1:P.0 --+-- t0:P.1 -+- h2        P = 1, 2
h1 -+           +-- t1:P.1 --+           +- h3
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
import uvloop
from printed import printed
from slowness import PATIENCE, until

from mrc.cli.main import main
from mrc.errors import StateError
from mrc.linux import netns, system
from mrc.sim import hosts
from mrc.sim import traffic as runs
from mrc.sim.scenario import Scenario
from mrc.testbed import build, state
from mrc.testbed.bed import Testbed, find_programs
from mrc.testbed.state import folder

from .conftest import bed_of

HEAD = """
title = "traffic of a test"
topology = { hosts = 4, planes = 2, t0 = 2, t1 = 2, host_rate = "200Mbit/s" }
run = { until = "60s", sample = "10ms" }
"""
EVERY_KIND = f"""{HEAD}
[[traffic]]
kind = "permutation"
write = "256KiB"
writes = 3
[[traffic]]
kind = "incast"
to = 0
write = "64KiB"
writes = 2
start = "100ms"
[[traffic]]
kind = "all-to-all"
write = "64KiB"
qps = 2
start = "150ms"
[[traffic]]
kind = "checkpoint"
to = [3]
write = "64KiB"
interval = "5ms"
writes = 4
[[traffic]]
kind = "ring"
group = "training"
write = "32KiB"
steps = 3
compute = "20ms"
start = "200ms"
[[checks]]
measure = "completed"
[[checks]]
measure = "qp_errors"
[[checks]]
name = "steps"
measure = "step_time"
group = "training"
at_most = 1000.0
"""
COUNTS = {"permutation": 4, "incast": 3, "all-to-all": 24, "checkpoint": 3, "training": 4}
SILENT = f"""{HEAD}
[[traffic]]
kind = "pairs"
pairs = [[0, 2]]
write = "1MiB"
writes = 20
[[faults]]
target = "plane:1"
kind = "silent"
at = "120ms"
until = "350ms"
[[checks]]
name = "of line rate"
measure = "goodput"
at_least = 0.0
note = "the test is on a busy machine"
[[checks]]
measure = "completed"
"""


bed = bed_of(hosts=4, planes=2, t0=2, t1=2, rate="200mbit")


@pytest.fixture
def told(
    bed: Testbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, Any]]:
    """Runs a scenario by the command; returns its JSON."""

    def run_it(text: str, *words: str, code: int = 0) -> dict[str, Any]:
        file = tmp_path / "scene.toml"
        file.write_text(text)
        command = [*f"testbed run --name {bed.name} --json".split(), str(file), *words]
        found, shown = main(command), capsys.readouterr()
        assert found == code, shown.err
        result: dict[str, Any] = printed("testbed run --over", shown.out)
        assert not bed.faults()
        until(lambda: not left_in(bed), bed)  # what ties iperf3 to its host ends a little later
        return result

    return run_it


def left_in(bed: Testbed) -> list[str]:
    """Programs that still run in the hosts."""
    nodes = {bed.plan.nodes[f"h{host}"].namespace: f"h{host}" for host in range(4)}
    return [program.command for program in find_programs(nodes, folder(bed.name))]


def by_group(run: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for flow in run["flows"]:
        found.setdefault(flow["group"], []).append(flow)
    return found


def test_run__every_kind_of_traffic_by_mrc_and_by_tcp(told: Callable[..., dict[str, Any]]) -> None:
    result = told(EVERY_KIND, "--over", "mrc,tcp")
    completed, errors, steps = result["checks"]
    assert completed["met"] and completed["baselines"] == {"tcp": 1.0, "simulator": 1.0}
    assert errors["met"] and errors["value"] == 0
    # A host that reads late makes one step longer and the next one shorter than it could be.
    assert steps["value"] > 0 and steps["baselines"]["tcp"] > 0
    assert [each["transport"] for each in result["runs"]] == ["mrc", "tcp"]
    for each in result["runs"]:
        groups = by_group(each)
        assert {name: len(flows) for name, flows in groups.items()} == COUNTS
        for flow in each["flows"]:
            assert flow["received_bytes"] == flow["writes"] * flow["write_bytes"]
            assert (flow["completed"], flow["failed"], flow["error"]) == (flow["writes"], 0, "")
            assert flow["samples"]["received_bytes"][-1] == flow["received_bytes"]
            assert flow["sent_packets"] > 0
        # Three steps, each after 20 ms of computing.
        first, last = (
            f([flow[key] for flow in groups["training"]])
            for f, key in ((min, "first_ns"), (max, "last_ns"))
        )
        assert first >= 220_000_000 and last - first >= 2 * 20_000_000
        assert all(flow["first_ns"] >= 100_000_000 for flow in groups["incast"])
    (simulated,) = result["simulated"]
    assert [flow["receiver"] for flow in simulated["flows"]] == [
        flow["receiver"] for flow in result["runs"][0]["flows"]
    ]


@pytest.mark.default
@pytest.mark.usefixtures("healed")
def test_run__a_plane_falls_silent(
    bed: Testbed, told: Callable[..., dict[str, Any]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """mrc goes on over the other plane. The plane is silent from when
    the hosts have connected: on a busy machine the scenario's fault may come after the traffic.
    """
    counters, calls = runs.counters, count()

    def silent_first(bed: Testbed) -> runs.Moved:
        if next(calls) == 0:  # before the flows; it counts again after them
            bed.fail("plane:1")
        return counters(bed)

    monkeypatch.setattr(runs, "counters", silent_first)
    silent = SILENT.replace('until = "350ms"\n', "")
    result = told(silent)
    assert result["checks"][1]["met"]
    (run,) = result["runs"]
    changes = [(each["event"], each["plane"]) for each in run["ev_events"]]
    changes = [each for each in changes if each[0] in ("plane suspended", "plane resumed")]
    assert ("plane suspended", 1) in changes
    assert run["flows"][0]["lost_packets"] > 0
    times = run["flows"][0]["samples"]["now_ns"]
    assert all(a < b for a, b in pairwise(times))


def test_run__a_missed_target_is_exit_code_1(told: Callable[..., dict[str, Any]]) -> None:
    missed = SILENT.replace('measure = "completed"', 'measure = "qp_errors"\nat_least = 1')
    result = told(missed, "--scale", "10%", "--until", "50ms", "--set", "faults=[]", code=1)
    assert result["checks"][1]["met"] is False
    assert result["scenario"]["until_ns"] == 50_000_000
    assert result["runs"][0]["flows"][0]["write_bytes"] == round((1 << 20) * 0.1)


@pytest.mark.skipif(not Testbed.has_mptcp(), reason="needs a kernel with CONFIG_MPTCP")
def test_run__by_mptcp(told: Callable[..., dict[str, Any]]) -> None:
    """One flow fills more than one plane could."""
    result = told(SILENT.replace("[[faults]]", "[[faults]]\nevery = '10s'\nfor = '100ms'")
                  .replace('at = "120ms"\nuntil = "350ms"', 'at = "50s"'),
                  "--over", "mptcp")  # fmt: skip
    assert result["checks"][1]["met"]
    (flow,) = result["runs"][0]["flows"]
    assert flow["received_bytes"] == 20 << 20 and flow["sent_packets"] is None


@pytest.mark.skipif(system.find("iperf3") is None, reason="needs iperf3: apt-get install iperf3")
def test_run__by_iperf3(told: Callable[..., dict[str, Any]]) -> None:
    result = told(SILENT.replace("plane:1", "plane:2"), "--over", "iperf3")
    (flow,) = result["runs"][0]["flows"]
    assert (flow["completed"], flow["error"]) == (20, "")
    # The server stops counting when the client has passed all to the kernel.
    assert 10 << 20 < flow["received_bytes"] <= 20 << 20
    assert flow["retransmitted_packets"] is not None and flow["sent_packets"] is None


def scene(bed: Testbed, tmp_path: Path) -> Scenario:
    file = tmp_path / "scene.toml"
    file.write_text(SILENT)
    return runs.load(str(file), {}, bed.shape)


def test_run__a_host_that_dies_ends_all(
    bed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the host; no process and no fault stays."""
    heard = hosts.HostProcess.hear
    seen: dict[str, hosts.LocalHost] = {}
    ready: list[str] = []

    async def hear(self: hosts.HostProcess) -> Any:
        told = await heard(self)
        assert isinstance(self, hosts.LocalHost)
        seen[self.name] = self
        ready.append(self.name)
        if len(ready) == 4:  # both listen, and both have connected
            os.kill(seen["h2"]._child.pid, signal.SIGKILL)
        return told

    monkeypatch.setattr(hosts.HostProcess, "hear", hear)
    with pytest.raises(StateError, match="h2: its process ended with exit code -9"):
        uvloop.run(runs.run(bed, scene(bed, tmp_path), 1, "tcp", lambda *_: None))
    assert not bed.faults() and not left_in(bed)


# ---- The demonstration ---------------------------------------------------------------------------


# Slow, so that also a command that stands still for some seconds injects and heals the fault during
# the transfer, which takes 11 s.
BYTES = 16 << 20
DEMO_BPS = 5e6
SMALL = ("--planes", "3", "--t1", "1", "--rate", "5mbit", "--size", "16MiB")


@pytest.fixture
def demo(
    bed_name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[subprocess.Popen[str]]:  # fmt: skip
    """A small running demonstration; its files go to `tmp_path`. Its state is apart from that of
    other test beds: its fault would wait while one of them is built, and then come too late.
    """
    monkeypatch.setenv("MRC_RUN_DIR", str(tmp_path_factory.mktemp("run")))
    command = [sys.executable, "-m", "mrc", "demo", "--json", "--name", bed_name, *SMALL]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)
    yield process
    process.kill()
    process.communicate()


def nothing_left(bed_name: str, folder: Path) -> bool:
    namespaces = [name for name in netns.names() if bed_name in name]
    return not namespaces and not os.listdir(folder) and state.load(bed_name) is None


@pytest.mark.slow
def test_demo__interrupted(demo: subprocess.Popen[str], bed_name: str, tmp_path: Path) -> None:
    assert demo.stderr is not None
    while "is silent" not in demo.stderr.readline():
        assert demo.poll() is None
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 130
    assert printed("demo", output) == {
        "result": "Failure", "schema": 1, "error": "interrupted", "exit_code": 130,
    }  # fmt: skip
    assert nothing_left(bed_name, tmp_path)


def test_demo__reports_what_happened(
    demo: subprocess.Popen[str], bed_name: str, tmp_path: Path
) -> None:
    output, errors = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 0, errors
    result = printed("demo", output)
    assert result["identical"] is True
    assert result["bytes"] == BYTES
    capacity = DEMO_BPS * 8844 / (8844 + 142)
    assert result["plane_capacity_bits_per_second"] == pytest.approx(capacity)
    assert result["capacity_bits_per_second"] == pytest.approx(3 * capacity)
    assert result["surviving_capacity_bits_per_second"] == pytest.approx(2 * capacity)
    assert result["recovery_seconds"] is None or result["recovery_seconds"] >= 0
    assert 0 < result["failed_after_seconds"] < result["healed_after_seconds"] <= result["seconds"]
    assert 0 < result["goodput_before_bits_per_second"] < 3.15 * capacity
    assert 0 < result["goodput_after_bits_per_second"] < 2.15 * capacity
    assert 0 < result["processor_share"] <= 1
    moved = sum(each["bits_per_second"] for each in result["goodput"]) * result["bin_seconds"] / 8
    assert moved == pytest.approx(BYTES, rel=0.1)
    (file,) = result["receiver"]["files"]
    assert file["digest"] == result["sender"]["files"][0]["digest"]
    assert nothing_left(bed_name, tmp_path)


def test_demo__names_what_is_missing_before_it_begins(
    bed_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PATH", "/bin-of-nobody")
    monkeypatch.setattr(system, "find", lambda name: None if name == "ip" else f"/bin/{name}")
    assert main(["demo", "--name", bed_name, *SMALL]) == 1
    assert capsys.readouterr().err == "mrc demo: ip is missing: apt-get install iproute2\n"
    assert nothing_left(bed_name, tmp_path)


def test_demo__leaves_a_test_bed_of_that_name_alone(bed_name: str) -> None:
    with Testbed(bed_name, planes=1, t1=1):
        command = [sys.executable, "-m", "mrc", "demo", "--quiet", "--name", bed_name, *SMALL]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 1
        assert f"test bed {bed_name} is already up" in done.stderr
        assert build.missing(Testbed.existing(bed_name).plan) == []


def test_demo__as_root_of_a_container(tmp_path: Path) -> None:
    """Root without CAP_SYS_ADMIN, where user namespaces are forbidden: it says so before it writes
    anything.
    """
    forbid = "echo 0 > /proc/sys/user/max_user_namespaces"
    drop = "setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin"
    script = f'{forbid} && exec {drop} "$@"'
    words = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh"]
    done = subprocess.run(
        [*words, sys.executable, "-m", "mrc", "demo"], capture_output=True, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)}, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "give this root CAP_SYS_ADMIN" in done.stderr and done.stderr.count("\n") == 1
    assert "writing" not in done.stderr
