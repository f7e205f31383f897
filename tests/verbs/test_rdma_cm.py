# SPDX-License-Identifier: Apache-2.0
"""rdma_cm of `mrc run --rc`: our programs, and unmodified ones of others."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from ports import free_port, is_taken
from slowness import PATIENCE, until
from verbs.building import CM_LIBRARY, cm_compiled, cm_sanitized

from mrc.agent import socket as agent_socket
from mrc.connect.oob import encode_frame

from .conftest import SAID_OF_RC, Agent

pytestmark = pytest.mark.skipif(
    not CM_LIBRARY.exists(), reason="libmrc-cm is not built: apt-get install librdmacm-dev"
)
NO_DATAGRAMS = (
    "libmrc-cm: rdma_cm serves RDMA_PS_TCP only, no port space 0x111: MRC has no datagrams\n"
)
REFUSED = NO_DATAGRAMS + "libmrc-cm: multicast of rdma_cm is refused: MRC has none\n"
PARTS = {
    "ids": (
        ["ports", "no listener", "rejected", "connected", "own QP", "limits", "polled",
         "left over", "refused"], SAID_OF_RC + REFUSED,
    ),
    "endpoints": (["connected", "rejected", "shared"], SAID_OF_RC),
}  # fmt: skip


def needs(program: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not shutil.which(program), reason=f"needs {program}: apt-get install {package}"
    )


def is_listening(agent: Agent, port: int) -> bool:
    """Whether a program listens at a port of rdma_cm."""
    found = agent_socket.profiles(agent_socket.name_of(agent.environment))
    return port in {row.port for row in found.rdma_cm}


@pytest.fixture(scope="module")
def cm_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cm_compiled(tmp_path_factory.mktemp("cm"))


@pytest.mark.parametrize("name", PARTS)
def test_program(agent: Agent, cm_programs: Path, name: str) -> None:
    code, out, err = agent.output(cm_programs / "managed", name, rc=True)
    assert (code, err) == (0, PARTS[name][1])
    assert out.splitlines() == PARTS[name][0]


@pytest.mark.default
def test_program__goes_on_with_the_next_agent(agent: Agent, cm_programs: Path) -> None:
    environment = agent.environment | {"MRC_RC": "1"}
    with subprocess.Popen(
        [cm_programs / "managed", "resumed"], env=environment, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "connected\n"
            agent.kill()
            second = Agent.start(agent.environment, agent.port)
            try:
                out, err = program.communicate("\n", timeout=PATIENCE)
            finally:
                second.kill()
        finally:
            program.kill()
    assert (program.returncode, out) == (0, "resumed\n"), err


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["asan", "tsan"])
def test_programs__under_a_sanitizer(agent: Agent, tmp_path: Path, sanitizer: str) -> None:
    folder = cm_sanitized(tmp_path, sanitizer)
    for name, (parts, said) in PARTS.items():
        done = agent.linked(folder / "managed", name, ASAN_OPTIONS="detect_leaks=0", MRC_RC="1")
        assert (done.returncode, done.stderr) == (0, said), name
        assert done.stdout.splitlines() == parts


# ---- A hostile peer -------------------------------------------------------------------------

CLAIM = {"gid": "127.0.0.1", "port": 1, "qpn": 3, "token": "00" * 16}
REQUEST = {"type": "cm", "to": "127.0.0.1", "port": 7175, "by": CLAIM, "params": {}}
WORDS: dict[str, list[dict[str, Any]]] = {
    "no request": [{"type": "cm"}],
    "an answer first": [{"type": "cm", "reason": 28}],
    "too much private data": [REQUEST | {"params": {"private": "00" * 197}}],
    "an address of nobody": [REQUEST | {"to": "everywhere"}],
    "a guessed token": [{"type": "cm_end", "token": "00" * 16}],
    "a long one": [{"type": "cm_end", "token": "0" * 4000}],
    "a request, and nonsense": [REQUEST, {"type": "cm", "reason": -1}],
    "a request, and many words": [REQUEST, *([{"type": "cm"}] * 50)],
    "a request, and nothing": [REQUEST],
}
HERE = ("-a", "127.0.0.1")


@needs("rping", "rdmacm-utils")
def test_hostile_peer__costs_others_nothing(agent: Agent) -> None:
    """Its agent hears all that, and then a client comes. The requests are for a port at which
    nobody listens: rping itself ends when a peer goes while it connects.
    """
    with agent.started("rping", "-s", "-P", *HERE, rc=True) as server, ExitStack() as stack:
        stack.callback(server.kill)
        until(lambda: server.poll() is not None or is_listening(agent, 7174))
        for words in WORDS.values():
            for _ in range(3):
                peer = stack.enter_context(socket.create_connection(("127.0.0.1", agent.port)))
                peer.sendall(b"".join(encode_frame(each) for each in words))
        code, _, err = agent.output("rping", "-c", *HERE, "-C", "2", rc=True)
        assert code == 0, err
        assert agent.process.poll() is None and server.poll() is None


# ---- Unmodified programs --------------------------------------------------------------------


def run_pair(
    agent: Agent, server: Sequence[str], client: Sequence[str], port: int, *, endless: bool = False,
    folder: Path | None = None,
) -> tuple[str, str]:  # fmt: skip
    """What both print. `endless`: the server goes on, until it is killed."""
    with ExitStack() as stack:
        served = stack.enter_context(agent.started(*server, rc=True, cwd=folder))
        stack.callback(served.kill)
        until(lambda: served.poll() is not None or is_listening(agent, port))
        code, out, err = agent.output(*client, rc=True, cwd=folder)
        if endless or code != 0:
            served.kill()
        there, wrong = served.communicate(timeout=PATIENCE)
        assert code == 0, "\n".join((out, err, there, wrong))
        assert endless or served.returncode == 0, (there, wrong)
    return there, out


RDMA_CORE = {
    "rping": (["rping", "-s", *HERE, "-v", "-C", "9"], ["rping", "-c", *HERE, "-v", "-C", "9"]),
    "ucmatose": (
        ["ucmatose", "-b", "127.0.0.1", "-c", "20"], ["ucmatose", "-s", "127.0.0.1", "-c", "20"],
    ),
    "rdma_client": (["rdma_server"], ["rdma_client", "-s", "127.0.0.1"]),
    "rdma_xclient": (["rdma_xserver"], ["rdma_xclient", "127.0.0.1"]),
}  # fmt: skip
PORTS = {"rping": 7174, "ucmatose": 7471, "rdma_client": 7471, "rdma_xclient": 7471}


@pytest.mark.default
@needs("rping", "rdmacm-utils")
@pytest.mark.parametrize("name", RDMA_CORE)
def test_rdmacm_utils(agent: Agent, name: str) -> None:
    server, client = RDMA_CORE[name]
    there, out = run_pair(agent, server, client, PORTS[name])
    if name == "rping":
        assert out.count("ping data: rdma-ping-") == there.count("server ping data") == 9
    elif name == "ucmatose":
        assert out.endswith("test complete\nreturn status 0\n")
    else:
        assert out.endswith("end 0\n") and there.endswith("end 0\n")


@needs("rping", "rdmacm-utils")
def test_rdmacm_utils__several_clients_of_one_server(agent: Agent) -> None:
    """One connects after the other: older versions of rping lose the first of two requests.
    What a client prints fills its pipe, so none ends before all have connected.
    """
    size = ["-S", "1000"]
    client = [*("rping", "-c", *HERE, *size), "-v", "-C", "100"]
    with agent.started("rping", "-s", "-P", *HERE, *size, rc=True) as server:
        try:
            until(lambda: server.poll() is not None or is_listening(agent, 7174))
            with ExitStack() as stack:
                clients = []
                for _ in range(3):
                    each = stack.enter_context(agent.started(*client, rc=True))
                    stack.callback(each.kill)
                    assert each.stdout is not None and each.stdout.readline(), each.communicate()
                    clients.append(each)
                for each in clients:
                    said = each.communicate(timeout=PATIENCE)
                    assert each.returncode == 0, said
        finally:
            server.kill()


@needs("udaddy", "rdmacm-utils")
@pytest.mark.parametrize("words", [["udaddy"], ["mckey", "-m", "224.0.0.1"]])
def test_rdmacm_utils__datagrams_are_refused_in_words(agent: Agent, words: list[str]) -> None:
    code, _, err = agent.output(*words, rc=True)
    assert code != 0 and NO_DATAGRAMS in err


@needs("ib_send_bw", "perftest")
@pytest.mark.parametrize("name", ["ib_send_bw", "ib_write_lat", "ib_read_bw", "ib_atomic_lat"])
def test_perftest(agent: Agent, name: str) -> None:
    port = free_port()
    words = [name, "-R", "-F", "-n", "50", "-p", str(port)]
    _, out = run_pair(agent, words, [*words, "127.0.0.1"], port)
    assert re.search(r"^ \d+ +50 +\S", out, re.MULTILINE), out


@pytest.mark.slow
@needs("qperf", "qperf")
def test_qperf(agent: Agent) -> None:
    port = free_port()
    tests = ["rc_lat", "rc_bw", "rc_rdma_read_bw", "rc_rdma_write_lat"]
    client = ["qperf", "-lp", str(port), "-cm1", "-t", "1", "127.0.0.1", *tests]
    with agent.started("qperf", "-lp", str(port), rc=True) as server:
        try:
            until(lambda: server.poll() is not None or is_taken(port))
            code, out, err = agent.output(*client, rc=True)
        finally:
            server.kill()
    assert code == 0, err
    assert re.findall(r"^(\w+):\n +\w+ += +\d", out, re.MULTILINE) == tests


FIO = "[job]\nioengine=rdma\nbs=64k\nsize=4m\niodepth=4\nport={port}\n{rest}"


def has_fio() -> bool:
    found = shutil.which("fio")
    return (
        found is not None
        and b"rdma" in subprocess.run([found, "--enghelp"], capture_output=True, check=True).stdout
    )


@pytest.mark.skipif(not has_fio(), reason="needs fio with its rdma engine: apt-get install fio")
@pytest.mark.parametrize("verb", ["write", "read", "send"])
def test_fio(agent: Agent, tmp_path: Path, verb: str) -> None:
    port = free_port()
    rest = {"server": "rw=read\n", "client": f"hostname=127.0.0.1\nverb={verb}\nrw=write\n"}
    for name, lines in rest.items():
        (tmp_path / name).write_text(FIO.format(port=port, rest=lines))
    _, out = run_pair(agent, ["fio", "server"], ["fio", "client"], port, folder=tmp_path)
    assert re.search(r"issued rwts: total=0,64,0,0 short=0,0,0,0", out), out
