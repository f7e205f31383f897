# SPDX-License-Identifier: Apache-2.0
"""Training jobs give what they give over TCP, ride out faults of the network, and learn of a rank
or of all planes that are lost; short runs of the benchmarks that need torch.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from netns.conftest import fresh_name
from slowness import PATIENCE, limit
from training.conftest import Job, Steps, command_of, local_job

from mrc.linux import netns
from mrc.testbed.bed import Testbed
from mrc.testbed.shape import Fabric

WARM_UP = 5
LONGEST_STEP = 3.0  # times the median before the fault
PLANES = ("plane:1", "plane:2", "plane:3", "plane:4")


def same(steps: Steps, reference: Steps) -> None:
    """Bit for bit."""
    assert steps.losses == reference.losses
    assert steps.weights == reference.weights
    assert len(steps.weights) == 1


def rides_out(steps: Steps, reference: Steps, planes_left: float) -> None:
    """Same results, no long step, and a median step as long as the planes left allow."""
    same(steps, reference)
    before, during = steps.median(WARM_UP, 30), steps.median(32, 60)
    longest = max(steps.seconds[WARM_UP:])
    step = steps.seconds.index(longest)
    print(f"medians: {before * 1e3:.0f} ms before, {during * 1e3:.0f} ms = {during / before:.2f}")
    print(f"longest step: {longest * 1e3:.0f} ms = {longest / before:.2f} medians, step {step}")
    assert during <= before * len(PLANES) / planes_left * 1.1
    assert longest <= LONGEST_STEP * before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("targets", "fault"),
    [
        (("plane:2",), {}),
        (("plane:2",), {"rate_share": 0.1}),
        (("plane:1", "plane:3"), {}),
        (("plane:2",), {"loss": 0.2}),
        (("plane:2",), {"mode": "down"}),
    ],
    ids=["silent", "slow", "two", "loss", "down"],
)
def test_ddp__faults(
    bed: Testbed, job: Job, over_tcp: Steps, targets: tuple[str, ...], fault: dict[str, Any]
) -> None:
    job.start(bed, "ddp", "--steps", "90")
    job.until_step(30)
    bed.fail(targets, **fault)
    job.until_step(60)
    bed.heal("all")
    rides_out(job.steps(), over_tcp, len(PLANES) - len(targets))


@pytest.mark.slow
def test_example__tells_the_story() -> None:
    command = [sys.executable, "-m", "mrc.lab.examples.train"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "plane:2 is silent" in done.stdout
    assert done.stdout.endswith("losses and weights are bit for bit those of TCP\n")


# ---- Every kind of operation over four ranks ----------------------------------------------------


@pytest.mark.slow
def test_collectives__as_over_tcp(four: Testbed, job: Job) -> None:
    over_mrc = job.start(four, "collectives.py").ends()
    assert over_mrc == local_job("collectives.py", size=4).ends()
    assert all(len(lines) >= 22 for lines in over_mrc)


@pytest.mark.slow
def test_fsdp__as_over_tcp(four: Testbed, job: Job) -> None:
    over_mrc = job.start(four, "fsdp").steps()
    assert over_mrc == local_job("fsdp", size=4).steps()
    assert len(over_mrc.weights) == 1


def test_collectives__loopback() -> None:
    """The group named mrc, on one host, without the variable."""
    job = local_job("collectives.py", "mrc", size=4, transport="")
    printed = job.ends()
    assert printed[0][0] == printed[1][0]


# ---- Failures -----------------------------------------------------------------------------------

NOTICE_SECONDS = 2.0  # until the others raise after a rank has died
LOST_SECONDS = 15.0  # until all raise when all paths to a rank are lost: 9 s are retries
PLAIN_MTU = 8844  # payload of a packet with an ICRC, at MTU 9000
SEAL_BYTES = 24  # that the seal takes beyond the ICRC


@pytest.mark.slow
def test_failure__a_rank_is_killed(four: Testbed, job: Job) -> None:
    job.start(four, "ddp", "--steps", "3000", "--width", "256")
    job.until_step(10)
    killed = time.monotonic()
    os.killpg(job.ranks[2].process.pid, signal.SIGKILL)
    for number in (0, 1, 3):
        error = job.ranks[number].until(lambda line: "error" in line)
        assert "rank 2" in error["error"] and "h2" in error["error"], error
        assert error["time"] - killed < NOTICE_SECONDS
        assert job.ranks[number].process.wait(PATIENCE) == 1


@pytest.mark.slow
def test_failure__all_planes_are_silent_while_all_wait(bed: Testbed, job: Job) -> None:
    """Neither rank has anything in flight, for hours."""
    job.start(bed, "waiting")
    job.until_step(0)
    failed = time.monotonic()
    bed.fail([f"plane:{plane}" for plane in range(1, 5)])
    paths_are_lost(job, failed, {0: 1, 1: 0})


@pytest.mark.slow
def test_failure__a_host_is_cut_off(four: Testbed, job: Job) -> None:
    """Each rank names the lost one, not the rank that gave up first."""
    job.start(four, "ddp", "--steps", "3000", "--width", "256")
    job.until_step(10)
    failed = time.monotonic()
    four.fail([f"link:h2.{plane}" for plane in range(1, 5)])
    paths_are_lost(job, failed, {0: 2, 1: 2, 3: 2})


def paths_are_lost(job: Job, failed: float, others: dict[int, int]) -> None:
    """Each rank raises in time, and says that all paths to that other rank are lost."""
    for number, other in others.items():
        error = job.ranks[number].until(lambda line: "error" in line)
        assert f"rank {other}: all paths to h{other} are lost" in error["error"], error
        assert error["time"] - failed < LOST_SECONDS
        assert job.ranks[number].process.wait(PATIENCE) == 1


def test_failure__the_timeout_of_the_group() -> None:
    """Both ranks raise at once, and so does their next operation: the group is over."""
    job = local_job("waiting", "10", "1800", transport="MRC")
    late = "timed out after 10000 ms: a receive did not complete"
    over = "mrc: another operation of this group timed out, which ended the group"
    for rank, errors in zip(
        job.ranks, ([f"mrc: {late}", over], [f"mrc: rank 0: {late}"] * 2), strict=True
    ):
        assert rank.process.wait(PATIENCE) == 1
        rank.end()
        assert [line["error"] for line in rank.printed if "error" in line] == errors


def test_failure__a_rank_ends_in_order() -> None:
    zero, one, two = local_job("leaving", size=3, transport="MRC").ends()
    for lines, received in ((zero, 1.0), (one, 0.0)):
        assert "mrc: rank 2" in lines[0]["error"] and "closed the connection" in lines[0]["error"]
        assert lines[1:] == [{"received": received}]
    assert two == []


@pytest.mark.parametrize("floats", ["5000", pytest.param("500000", marks=pytest.mark.slow)])
def test_end__after_what_the_others_were_sent(job: Job, floats: str) -> None:
    """The end of a rank overtakes its acknowledgements: TCP is faster than links of 10 ms."""
    with Testbed(fresh_name(), planes=2, delay_ns=10_000_000, fabric=Fabric.EMULATED) as far:
        job.start(far, "parting", floats).ends()


@pytest.mark.slow
def test_end__of_eight_ranks_on_one_host() -> None:
    for _ in range(5):
        local_job("parting", "5000", size=8, transport="MRC").ends()


@pytest.mark.slow
def test_torchrun__restarts_a_job_of_which_a_rank_was_killed() -> None:
    """Over Gloo's TCP, too, torch 2.13 needs the second variable to restart on one host."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", "2", "--max-restarts", "1", *command_of("elastic")]
    torchrun[3:3] = ["--monitor-interval", "5"]  # rank 0 raises before torchrun ends it
    variables = {"GLOO_DEVICE_TRANSPORT": "MRC", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(
        torchrun, env={**os.environ, **variables}, capture_output=True, text=True, check=False,
        timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "RuntimeError: mrc: rank 1: " in done.stderr
    assert done.stdout.count('{"restarts": 1, "sum": 4.0}') == 2


def test_import__another_version_of_torch_is_refused() -> None:
    program = "import mrc.torch.build as build; build.VERSIONS = ((9, 0), (9, 1)); import torch"
    environment = {**os.environ, "GLOO_DEVICE_TRANSPORT": "MRC"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.search(r"TorchError: torch 2\.\S+: the mrc transport supports torch", done.stderr)


@pytest.mark.slow
def test_fork__data_loaders(bed: Testbed, job: Job) -> None:
    """Worker processes that fork from a rank do not touch its connections."""
    steps = job.start(bed, "ddp", "--steps", "20", "--width", "256", "--workers", "2").steps()
    assert len(steps.losses) == 20 and len(steps.weights) == 1


@pytest.mark.slow
def test_message__above_1_gib(bed: Testbed, job: Job) -> None:
    (sent,), (received,) = job.start(bed, "large").ends()
    assert sent == received


@pytest.mark.slow
def test_secret__seals_the_packets(bed: Testbed, job: Job, over_tcp: Steps, tmp_path: Path) -> None:
    """The results are the same, and packets have room for the seal."""
    job.start(bed, "ddp", "--steps", "90", MRC_SECRET=secret_file(tmp_path, "job.key", 1))
    job.until_step(30)
    top = [sys.executable, "-m", "mrc", "top", "--local", "--json"]
    argv, environment = bed.host_command("h0", top)
    shown = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    (ours,) = [
        endpoint
        for endpoint in json.loads(shown.stdout)["endpoints"]
        if endpoint["pid"] == job.ranks[0].process.pid
    ]
    (qp,) = ours["qps"]
    assert qp["path_mtu_bytes"] == PLAIN_MTU - SEAL_BYTES
    steps = job.steps()
    assert (steps.losses, steps.weights) == (over_tcp.losses, over_tcp.weights)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["another", "none"])
def test_secret__of_another_rank_differs(
    bed: Testbed, job: Job, tmp_path: Path, other: str
) -> None:
    """All ranks raise; each names the other and the variable."""
    theirs = secret_file(tmp_path, "theirs", 2) if other == "another" else ""
    job.start_rank(bed, 0, "waiting", MRC_SECRET=secret_file(tmp_path, "ours", 1))
    job.start_rank(bed, 1, "waiting", MRC_SECRET=theirs)
    for number, rank in enumerate(job.ranks):
        assert rank.process.wait(PATIENCE) == 1
        rank.end()
        said = [line for line in rank.lines if f"cannot connect to rank {1 - number}" in line]
        assert said and "secret" in said[-1] and "set MRC_SECRET to" in said[-1], rank.lines[-3:]


@pytest.mark.parametrize("wrong", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_interfaces__of_another_rank_are_wrong(bed: Testbed, job: Job, wrong: int) -> None:
    """All ranks say so at once: the one with the wrong name has no address for the others."""
    for number in (0, 1):
        name = "nosuch" if number == wrong else ""
        job.start_rank(bed, number, "waiting", GLOO_SOCKET_IFNAME=name)
    for number, rank in enumerate(job.ranks):
        assert rank.process.wait(PATIENCE) == 1
        rank.end()
        who = "" if number == wrong else f"rank {wrong}: "
        said = f" failed with mrc: {who}GLOO_SOCKET_IFNAME: nosuch is no port"
        assert [line for line in rank.lines if said in line], rank.lines[-3:]


def secret_file(folder: Path, name: str, byte: int) -> str:
    file = folder / name
    file.write_bytes(bytes([byte]) * 32)
    file.chmod(0o600)
    return str(file)


# ---- Benchmarks: they measure every contender, and clean up -------------------------------------

ROOT = Path(__file__).parents[2]


def run(tmp_path: Path, name: str, *options: str) -> dict[str, Any]:
    """Runs a benchmark; returns its JSON."""
    before = set(netns.names())
    file = tmp_path / "run.json"
    command = [sys.executable, str(ROOT / "bench" / name), *options, "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit(110), check=False)
    assert done.returncode == 0, done.stderr
    assert not [left for left in set(netns.names()) - before if left.startswith(name)]
    result: dict[str, Any] = json.loads(file.read_text())
    return result


@pytest.mark.slow
def test_allreduce__quick(tmp_path: Path) -> None:
    """The ranks check their sums. One path has a quarter of the planes, MPTCP has more."""
    result = run(tmp_path, "allreduce", "--quick", "--only", "500mbit", "--ranks", "2",
                 "--size", "4096", "--size", "16777216")  # fmt: skip
    (bed,) = result["beds"]
    large = {row["contender"]: row["metrics"]["bus_bits_per_second"]["median"]
             for row in bed["rows"] if row["bytes"] == 16 << 20}  # fmt: skip
    capacity = bed["payload_capacity_bits_per_second"]
    assert large["TCP"] < 0.3 * capacity < large["MPTCP"] < 1.1 * capacity
    assert 0.3 * capacity < large["mrc"] < 1.1 * capacity
    assert len(result["checks"]) == 2


@pytest.mark.slow
def test_training__quick(tmp_path: Path) -> None:
    """TCP takes no step while its plane is silent; mrc goes on, and both compute the same."""
    result = run(tmp_path, "training", "--quick", "--only", "mrc", "--only", "TCP",
                 "--picture", str(tmp_path / "steps"))  # fmt: skip
    ours, theirs = result["runs"]
    assert result["same_losses"]
    assert [part["planes"] for part in ours["chapters"]] == [4, 3, 4]
    assert ours["chapters"][1]["steps"] > 5
    assert theirs["chapters"][1]["longest_seconds"] > 3.5
    assert {path.name for path in tmp_path.glob("*.svg")} == {"steps.svg"}
