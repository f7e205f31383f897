# SPDX-License-Identifier: Apache-2.0
"""What a training job sees when a rank or all planes are lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from netns.conftest import fresh_name
from slowness import PATIENCE
from training.job import SCRIPTS, Job, Steps, local_job

from mrc.testbed.bed import Testbed
from mrc.testbed.shape import Fabric

NOTICE_SECONDS = 2.0  # until the others raise after a rank has died
LOST_SECONDS = 15.0  # until all raise when all paths to a rank are lost: 9 s are retries
PLAIN_MTU = 8844  # payload of a packet with an ICRC, at MTU 9000
SEAL_BYTES = 24  # that the seal takes beyond the ICRC


@pytest.mark.slow
def test_failure__a_rank_is_killed(four: Testbed, job: Job) -> None:
    job.start(four, "ddp.py", "--steps", "3000", "--width", "256")
    job.until_step(10)
    killed = time.monotonic()
    os.killpg(job.ranks[2].process.pid, signal.SIGKILL)
    for number in (0, 1, 3):
        error = job.ranks[number].until(lambda line: "error" in line)
        assert "rank 2" in error["error"] and "h2" in error["error"], error
        assert error["time"] - killed < NOTICE_SECONDS
        assert job.ranks[number].process.wait(PATIENCE) == 1


@pytest.mark.slow
def test_failure__all_planes_are_silent(bed: Testbed, job: Job) -> None:
    job.start(bed, "ddp.py", "--steps", "3000", "--width", "256")
    job.until_step(10)
    failed = time.monotonic()
    bed.fail([f"plane:{plane}" for plane in range(1, 5)])
    paths_are_lost(job, failed, {0: 1, 1: 0})


@pytest.mark.slow
def test_failure__all_planes_are_silent_while_all_wait(bed: Testbed, job: Job) -> None:
    """Neither rank has anything in flight, for hours."""
    job.start(bed, "waiting.py")
    job.until_step(0)
    failed = time.monotonic()
    bed.fail([f"plane:{plane}" for plane in range(1, 5)])
    paths_are_lost(job, failed, {0: 1, 1: 0})


@pytest.mark.slow
def test_failure__a_host_is_cut_off(four: Testbed, job: Job) -> None:
    """Each rank names the lost one, not the rank that gave up first."""
    job.start(four, "ddp.py", "--steps", "3000", "--width", "256")
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
    job = local_job("waiting.py", "5", "1800", transport="MRC")
    late = "timed out after 5000 ms: a receive did not complete"
    over = "mrc: another operation of this group timed out, which ended the group"
    for rank, errors in zip(
        job.ranks, ([f"mrc: {late}", over], [f"mrc: rank 0: {late}"] * 2), strict=True
    ):
        assert rank.process.wait(PATIENCE) == 1
        rank.end()
        assert [line["error"] for line in rank.lines if "error" in line] == errors


def test_failure__a_rank_ends_in_order() -> None:
    zero, one, two = local_job("leaving.py", size=3, transport="MRC").ends()
    for lines, received in ((zero, 1.0), (one, 0.0)):
        assert "mrc: rank 2" in lines[0]["error"] and "closed the connection" in lines[0]["error"]
        assert lines[1:] == [{"received": received}]
    assert two == []


@pytest.mark.parametrize("floats", ["5000", pytest.param("500000", marks=pytest.mark.slow)])
def test_end__after_what_the_others_were_sent(job: Job, floats: str) -> None:
    """The end of a rank overtakes its acknowledgements: TCP is faster than links of 10 ms."""
    with Testbed(fresh_name(), planes=2, delay_ns=10_000_000, fabric=Fabric.EMULATED) as far:
        job.start(far, "parting.py", floats).ends()


@pytest.mark.slow
def test_end__of_eight_ranks_on_one_host() -> None:
    for _ in range(5):
        local_job("parting.py", "5000", size=8, transport="MRC").ends()


@pytest.mark.slow
def test_torchrun__restarts_a_job_of_which_a_rank_was_killed() -> None:
    """Over Gloo's TCP, too, torch 2.13 needs the second variable to restart on one host."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", "2", "--max-restarts", "1", str(SCRIPTS / "elastic.py")]
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
    steps = job.start(bed, "ddp.py", "--steps", "20", "--width", "256", "--workers", "2").steps()
    assert len(steps.losses) == 20 and len(steps.weights) == 1


@pytest.mark.slow
def test_message__above_1_gib(bed: Testbed, job: Job) -> None:
    (sent,), (received,) = job.start(bed, "large.py").ends()
    assert sent == received


@pytest.mark.slow
def test_secret__seals_the_packets(bed: Testbed, job: Job, over_tcp: Steps, tmp_path: Path) -> None:
    """The results are the same, and packets have room for the seal."""
    secret = secret_file(tmp_path, "job.key", 1)
    job.start(bed, "ddp.py", "--steps", "90", MRC_SECRET=secret)
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
    job.start_rank(bed, 0, "waiting.py", MRC_SECRET=secret_file(tmp_path, "ours", 1))
    job.start_rank(bed, 1, "waiting.py", MRC_SECRET=theirs)
    for number, rank in enumerate(job.ranks):
        assert rank.process.wait(PATIENCE) == 1
        rank.end()
        said = [line for line in rank.errors if f"cannot connect to rank {1 - number}" in line]
        assert said and "secret" in said[-1] and "set MRC_SECRET to" in said[-1], rank.errors[-3:]


@pytest.mark.parametrize("wrong", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_interfaces__of_another_rank_are_wrong(bed: Testbed, job: Job, wrong: int) -> None:
    """All ranks say so at once: the one with the wrong name has no address for the others."""
    for number in (0, 1):
        name = "nosuch" if number == wrong else ""
        job.start_rank(bed, number, "waiting.py", GLOO_SOCKET_IFNAME=name)
    for number, rank in enumerate(job.ranks):
        assert rank.process.wait(PATIENCE) == 1
        rank.end()
        who = "" if number == wrong else f"rank {wrong}: "
        said = f" failed with mrc: {who}GLOO_SOCKET_IFNAME: nosuch is no port"
        assert [line for line in rank.errors if said in line], rank.errors[-3:]


def secret_file(folder: Path, name: str, byte: int) -> str:
    file = folder / name
    file.write_bytes(bytes([byte]) * 32)
    file.chmod(0o600)
    return str(file)
