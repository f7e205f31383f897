# SPDX-License-Identifier: Apache-2.0
"""Programs of others over libmrc, unmodified: rdma-core's own tests and programs, UCX, Mooncake."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from ports import free_port
from slowness import PATIENCE, limit

from mrc.agent import socket as agent_socket
from mrc.agent.cli import run

from .conftest import Agent

TESTS = Path("/usr/share/doc/rdma-core/tests")
REFUSED = "PyverbsRDMAError: Failed to post send. Errno: 95, Operation not supported"
# Tests that SEND, which the device refuses, and what they would show besides.
SENDING = {
    "test_cq_events_rc": "events of a completion channel: tests/verbs/data.c has them",
    "test_rc_traffic_cq_ex": "completions of an extended CQ: test_qp_ex_rc_rdma_write has them",
    "test_mr_rereg_pd": "ibv_rereg_mr, which is refused too",
    "test_ro_rc_traffic": "memory with relaxed ordering: perftest registers it",
}
SENDING_BUFFERS = {"test_buf_rc_send_plain_pd_reg_buf_mr"}  # of rdma-core 65
READING_SYSFS = {"test_get_pkey_index"}  # of rdma-core 56; the kernel does not know the device
SYSFS = "/sys/class/infiniband/mrc0"
# rdma-core 56 reads the kernel's devices, and `rdma` fails on a kernel without RDMA.
NO_DEVICES = "#!/bin/sh\necho '[]'\n"
PASSED = 31  # of rdma-core 44
PASSED_EMULATED = 47


@pytest.mark.skipif(
    not shutil.which("ibv_devinfo"), reason="needs ibv_devinfo: apt-get install ibverbs-utils"
)
def test_programs__show_the_device(agent: Agent) -> None:
    code, out, err = agent.output("ibv_devices")
    assert (code, err) == (0, "") and re.search(r"^\s+mrc0\s+[0-9a-f]{16}$", out, re.MULTILINE)
    code, out, err = agent.output("ibv_devinfo", "-v", "-d", "mrc0")
    assert (code, err) == (0, "")
    assert "PORT_ACTIVE (4)" in out and "link_layer:\t\tEthernet" in out
    assert "RoCE v2" in out and "max_sge:\t\t\t16" in out


NEEDS_TESTS = pytest.mark.skipif(
    not TESTS.exists(), reason="needs its tests: apt-get install rdma-core"
)
NEEDS_PYVERBS = pytest.mark.skipif(
    not Path("/usr/lib/python3/dist-packages/pyverbs").exists(),
    reason="needs pyverbs: apt-get install python3-pyverbs",
)


def run_rdma_core(agent: Agent, folder: Path, *, rc: bool) -> tuple[str, dict[str, str]]:
    """What the tests print, and their failures by name."""
    shutil.copytree(TESTS, folder / "tests")
    for packed in (folder / "tests").glob("*.gz"):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    programs = folder / "bin"
    programs.mkdir()
    (programs / "rdma").write_text(NO_DEVICES)
    (programs / "rdma").chmod(0o755)
    _, _, log = agent.output(
        "env", f"PATH={programs}:{os.environ['PATH']}", "/usr/bin/python3",
        folder / "tests" / "run_tests.py", "-v", "--dev", "mrc0", cwd=folder, rc=rc,
    )  # fmt: skip
    assert re.search(r"^Ran \d\d\d tests", log, re.MULTILINE), log
    failures = dict(
        re.findall(r"^={70}\n\w+: (\w+) (.*?)(?=^={70}$|^Ran )", log, re.MULTILINE | re.DOTALL)
    )
    return log, failures


def verdict(log: str, test: str) -> str:
    """Of one test. Before it stand a title in some versions of rdma-core, and what destructors of
    pyverbs print: they close a completion channel that still has a CQ.
    """
    ends = r"(?:\.\.\. |^)(?P<verdict>ok|FAIL|ERROR|skipped .*?)$"
    found = re.search(rf"^test_{test} .*?{ends}", log, re.MULTILINE | re.DOTALL)
    return found["verdict"] if found else "none"


@pytest.mark.default
@NEEDS_TESTS
@NEEDS_PYVERBS
def test_rdma_core__passes_what_a_device_with_writes_can(agent: Agent, tmp_path: Path) -> None:
    log, failures = run_rdma_core(agent, tmp_path, rc=False)
    in_sysfs = {test for test in failures if test in READING_SYSFS}
    sending = set(SENDING) | SENDING_BUFFERS & set(failures)
    assert set(failures) - in_sysfs == sending, log
    assert [test for test in sending if REFUSED not in failures[test]] == []
    assert [test for test in in_sysfs if SYSFS not in failures[test]] == []
    assert len(re.findall(r"\.\.\. ok$", log, re.MULTILINE)) >= PASSED
    for test in (
        "qp_ex_rc_rdma_write",
        "qp_ex_rc_rdma_write_imm",
        "qp_ex_rc_rdma_write_zero_(length|size)",  # with "size" in rdma-core 65
    ):
        assert verdict(log, test) == "ok", test
    for title in (
        "Test RC QP creation via ibv_create_qp_ex with",
        "Queries an RC QP after creation",
    ):
        assert re.search(rf"^{title}.*\.\.\. ok$", log, re.MULTILINE), title


@NEEDS_TESTS
@NEEDS_PYVERBS
def test_rdma_core__passes_its_rc_tests_where_rc_is_emulated(agent: Agent, tmp_path: Path) -> None:
    log, failures = run_rdma_core(agent, tmp_path, rc=True)
    assert set(failures) - READING_SYSFS - {"test_mr_rereg_pd"} == set(), log
    assert len(re.findall(r"ok$", log, re.MULTILINE)) >= PASSED_EMULATED
    for test in (
        "cq_events_rc", "rc_traffic_cq_ex", "ro_rc_traffic", "atomic_cmp_and_swap",
        "atomic_fetch_and_add", "atomic_invalid_mr_access", "atomic_invalid_qp_access",
        "qp_ex_rc_send", "qp_ex_rc_send_imm", "qp_ex_rc_rdma_read", "qp_ex_rc_atomic_cmp_swp",
    ):  # fmt: skip
        assert verdict(log, test) == "ok", test


# ---- UCX's transport rc_verbs -------------------------------------------------------------------

UNSHARE = ("unshare", "-m", "-p", "-f", "--kill-child", "--mount-proc")
SCRIPT = """\
set -e
mount --make-rprivate /
mkdir "$1"
mount --rbind /dev "$1"
mount -t tmpfs -o mode=755 mrc /dev
mkdir /dev/shm
mount --bind "$1/shm" /dev/shm
for each in null zero random urandom; do
  touch "/dev/$each"
  mount --bind "$1/$each" "/dev/$each"
done
$AGENT &
agent=$!
until [ -e /dev/infiniband/mrc0 ]; do kill -0 $agent; done
$RUN $TEST &
server=$!
until grep -q ":$PORT_HEX 00000000" /proc/net/tcp; do kill -0 $server; done
$RUN $TEST 127.0.0.1
wait $server
kill $agent
wait $agent || true
! [ -e /dev/infiniband/mrc0 ]
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
@pytest.mark.skipif(
    not shutil.which("ucx_perftest"), reason="needs ucx_perftest: apt-get install ucx-utils"
)
@pytest.mark.parametrize("test", ["am_lat", "put_bw", "get -D bcopy", "fadd"])
def test_ucx_perftest(tmp_path: object, test: str) -> None:
    mrc, ucx = f"{sys.executable} -m mrc", free_port()
    agent = f"{mrc} agent --node --port {free_port()} --insecure --bind 127.0.0.1 -B lo --quiet"
    environment = os.environ | {
        agent_socket.ENVIRONMENT: f"@mrc-test-{os.getpid()}",
        "AGENT": agent,
        "RUN": f"{mrc} run --rc --",
        "TEST": f"ucx_perftest -x rc_verbs -d mrc0:1 -t {test} -n 100 -s 8 -p {ucx}",
        "PORT_HEX": f"{ucx:04X}",
    }
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", SCRIPT, "sh", f"{tmp_path}/dev"], env=environment,
        capture_output=True, text=True, timeout=limit(60),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^Final: +100 ", done.stdout, re.MULTILINE)) >= 1, done.stdout


# ---- Mooncake's transfer engine, which READs by default -----------------------------------------

END = Path(__file__).with_name("mooncake_end.py")


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("mooncake") is None,
    reason="needs Mooncake: pip install mooncake-transfer-engine-non-cuda",
)
def test_mooncake__reads_and_writes(agent: Agent) -> None:
    environment = agent.environment | run.environment(rc=True)
    command = [sys.executable, str(END)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as target:  # fmt: skip
        try:
            assert target.stdout is not None
            port_and_address = target.stdout.readline().split()
            done = subprocess.run(
                [*command, *port_and_address], env=environment, capture_output=True, text=True,
                timeout=PATIENCE,
            )  # fmt: skip
            out, err = target.communicate("\n", timeout=PATIENCE)
        finally:
            target.kill()
    assert done.returncode == 0, (done.stderr, err)
    assert (target.returncode, out) == (0, "back\n"), err
