# SPDX-License-Identifier: Apache-2.0
"""Programs in C over libmrc: what they get, what they meet when something ends, and what the
library exports.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import pytest
from printed import printed
from processes import USER, needs_root, squatting
from slowness import PATIENCE
from verbs.building import LIBRARY, ROOT, sanitized

from mrc.agent import socket as agent_socket
from mrc.agent import steering
from mrc.agent.libraries import FOLDER, LIBMRC, LIBMRC_CM, PROVIDER
from mrc.agent.steering import AgentKind

from .conftest import Agent


@pytest.mark.default
def test_data__every_function(agent: Agent, programs: Path) -> None:
    code, out, err = agent.output(programs / "data")
    assert (code, err) == (0, "")
    assert out.split() == ["content", "immediates", "errors", "done"]


def test_data__a_program_that_is_linked_needs_no_environment(agent: Agent, programs: Path) -> None:
    done = agent.linked(programs / "data")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("done\n")


def test_data__without_an_agent_says_what_to_start(agent: Agent, programs: Path) -> None:
    agent.kill()
    done = agent.linked(programs / "data")
    assert done.returncode == 1
    assert "libmrc: no agent runs on this host: start it with mrc agent" in done.stderr


@pytest.mark.default
def test_bad_luck(agent: Agent, programs: Path) -> None:
    code, out, err = agent.output(programs / "bad_luck")
    assert (code, err) == (0, SAID["bad_luck"])
    assert out.split("\n")[:-1] == [
        "signals while it attaches", "full send queue", "full receive queue",
        "full completion queue", "memory of nobody", "deregistered memory", "another domain",
        "buffers",
        "child", "signals", "peer killed", "leave",
    ]  # fmt: skip


@pytest.mark.default
def test_gather__copies_what_several_pieces_of_memory_hold(agent: Agent, programs: Path) -> None:
    code, out, err = agent.output(programs / "gather")
    assert (code, err) == (0, "")
    assert out.split("\n")[:-1] == [
        "before it is connected", "with an immediate", "inline", "limits", "new functions",
        "frees its copies",
        "delays nobody", "extended", "memory of nobody",
    ]  # fmt: skip


WRONG = [
    "missing arguments", "strange counts", "wrong order", "refused kinds", "nothing inline",
    "wrong CQs", "forgotten events", "acknowledged events", "closed device",
]  # fmt: skip
CROWD = ["one QP, one CQ", "events", "destroyed CQs", "256 QPs", "regions"]
SAID = {
    "bad_luck": "libmrc: a child of fork cannot use its parent's device: fork before it is"
    " opened\n",
    "wrong": """\
libmrc: a QP does not go from RESET to INIT: the mask of ibv_modify_qp lacks IBV_QP_ACCESS_FLAGS
libmrc: a QP to a LID is refused: only a GID names a peer here; set is_global and grh.dgid
libmrc: a QP cannot be connected to itself
libmrc: work request READ is refused: MRC has only WRITE and WRITE_IMM; mrc run --rc emulates it
libmrc: a QP of type 3 is refused: QPs of MRC are of type RC (2)
libmrc: a QP for other work requests than WRITE and WRITE_IMM is refused: MRC has no others;\
 mrc run --rc emulates some
libmrc: a shared receive queue is refused: MRC has none; mrc run --rc emulates them
""",
}


@pytest.mark.default
@pytest.mark.parametrize(
    ("name", "parts"), [("wrong", WRONG), pytest.param("crowd", CROWD, marks=pytest.mark.slow)]
)
def test_program(agent: Agent, programs: Path, name: str, parts: list[str]) -> None:
    """Wrong arguments and orders; several threads and many objects."""
    code, out, err = agent.output(programs / name)
    assert (code, err) == (0, SAID.get(name, ""))
    assert out.split("\n")[:-1] == parts


STRICT = ["masks", "values", "capacities", "memory", "solicited", "failed early"]


@pytest.mark.parametrize("rc", [False, True], ids=["mrc", "rc"])
def test_strict__refuses_and_tells_what_nics_do(agent: Agent, programs: Path, rc: bool) -> None:
    code, out, err = agent.output(programs / "wrong", "strict", rc=rc)
    assert code == 0, err
    assert out.split("\n")[:-1] == STRICT


def test_strict__a_peer_that_does_not_exist(agent: Agent, programs: Path) -> None:
    """Neither the end that dials nor the other one waits for it: the agent has its answer."""
    code, out, err = agent.output(programs / "wrong", "strict", "unknown")
    assert code == 0, err
    assert err.count("no program of this host has the QP: has it ended?") == 2
    assert out == "unknown peers\n"


@pytest.mark.parametrize("patience", ["short", pytest.param("long", marks=[pytest.mark.slow])])
def test_stopped_peer__fails_a_qp_when_its_program_says(
    agent: Agent, programs: Path, patience: str
) -> None:
    assert agent.output(programs / "peers", "stopped", patience) == (0, f"{patience}\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["asan", "tsan"])
def test_programs__under_a_sanitizer(agent: Agent, tmp_path: Path, sanitizer: str) -> None:
    """Exits without clean-up are tested too: what is not freed is no error."""
    folder = sanitized(tmp_path, sanitizer)
    for name in ("data", "gather", "bad_luck", "wrong", "crowd", "wrong strict"):
        program, *words = name.split()
        done = agent.linked(folder / program, *words, ASAN_OPTIONS="detect_leaks=0")
        said = done.stderr if name == "wrong strict" else SAID.get(name, "")
        assert (done.returncode, done.stderr) == (0, said), name


def test_agent_killed__data_goes_on_and_the_next_agent_connects(
    agent: Agent, programs: Path
) -> None:
    with agent.started(programs / "peers", "survivor") as program:
        assert program.stdout is not None and program.stderr is not None
        assert program.stdout.readline() == "connected\n"
        agent.kill()
        assert program.stdout.readline() == "no agent\n", program.stderr.read()
        second = Agent.start(agent.environment, agent.port)
        try:
            out, err = program.communicate(timeout=PATIENCE)
        finally:
            second.kill()
            program.kill()
    assert (program.returncode, err) == (0, "")
    assert out == "connected again\n"


def test_next_agent__that_refuses_a_program_is_named(agent: Agent, programs: Path) -> None:
    """As after an upgrade: the program would look for an agent for ever, without a word."""
    with agent.started(programs / "peers", "survivor") as program:
        assert program.stdout is not None and program.stderr is not None
        assert program.stdout.readline() == "connected\n"
        agent.kill()
        with agent_socket.listen(agent_socket.name_of(agent.environment)) as opened:
            opened.settimeout(PATIENCE)
            attached = False
            while not attached:  # others look whether there is an agent
                connection, _ = opened.accept()
                with connection:
                    if attached := bool(connection.recv(steering.MAX_FRAME)):
                        refusal = steering.pack(AgentKind.REFUSED, body=b"of another version")
                        connection.send(refusal)
                        said = program.stderr.readline()
        program.kill()
    assert said == "libmrc: the agent of this host refuses: of another version\n"


@pytest.mark.slow
def test_top__shows_the_program_and_not_its_agent(agent: Agent, programs: Path) -> None:
    command = [sys.executable, "-m", "mrc", "top", "--local", "--json", "-i", "0.05"]
    with agent.started(programs / "peers", "survivor") as program:
        assert program.stdout is not None and program.stdout.readline() == "connected\n"
        shown = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=True
        )
        program.kill()
    found = {each["pid"]: each for each in printed("top", shown.stdout)["endpoints"]}
    assert found[program.pid]["program"] == "peers" and found[program.pid]["qps_total"] == 2
    assert found[agent.process.pid]["program"] == "mrc agent"


def test_library__is_one_in_a_process(agent: Agent, programs: Path) -> None:
    """NCCL, for example, opens libibverbs.so at run time, and asks for versions."""
    code, out, err = agent.output(programs / "peers", "opened")
    assert (code, err) == (0, "")
    assert out == f"mrc0\n{LIBRARY}\n"


# ---- What libmrc exports, beside the system's libibverbs ----------------------------------------

PUBLIC = re.compile(r"IBVERBS_1\.\d+")
DATA, CONTROL = 27, 14


def exported(library: str | Path, mark: str = "@") -> set[tuple[str, str]]:
    """Name and version of each function that a library exports. "@@" marks those that programs get
    that are linked today.
    """
    lines = subprocess.run(
        ["readelf", "--dyn-syms", "--wide", library], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found = [line.split() for line in lines if " FUNC " in line and " UND " not in line]
    named = [re.split("@+", words[7]) for words in found if mark in words[7]]
    return {(name, version) for name, version in named}


@pytest.fixture(scope="module")
def ours() -> set[tuple[str, str]]:
    return exported(LIBRARY)


@pytest.mark.default
def test_exports__every_public_function_of_libibverbs(ours: set[tuple[str, str]]) -> None:
    name = find_library("ibverbs")
    assert name is not None
    (path,) = {
        line.split()[-1]
        for line in subprocess.run(
            ["ldconfig", "-p"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        if line.strip().startswith(f"{name} ")
    }
    theirs = {each for each in exported(path, "@@") if PUBLIC.fullmatch(each[1])}
    assert len(theirs) > 70
    assert not theirs - ours, "these would crash on our objects"


@pytest.mark.default
def test_exports__those_of_mrc(ours: set[tuple[str, str]]) -> None:
    names = {name for name, version in ours if version == "MRC_1.0"}
    header = (ROOT / "csrc/verbs/mrc_api.h").read_text()
    declared = set(re.findall(r"\b(mrc_\w+)\(", header))
    control = {name for name in declared if name.startswith("mrc_ctl_")}
    assert (len(declared - control), len(control)) == (DATA, CONTROL)
    assert declared == names


@pytest.mark.default
def test_exports__nothing_else(ours: set[tuple[str, str]]) -> None:
    others = {
        (name, version)
        for name, version in ours
        if version != "MRC_1.0" and not PUBLIC.fullmatch(version)
    }
    assert {name for name, _ in others} == {"ibv_query_gid_type"}, "which applications use"


@pytest.mark.default
def test_library__needs_no_python_and_no_libibverbs() -> None:
    dynamic = subprocess.run(
        ["readelf", "-d", LIBRARY], capture_output=True, text=True, check=True
    ).stdout
    needed = set(re.findall(r"NEEDED.*\[([^.\]]*)", dynamic))
    assert needed <= {"libisal", "libz", "libc", "ld-linux-x86-64", "ld-linux-aarch64"}
    assert "SONAME" in dynamic and "[libmrc.so.1]" in dynamic


@pytest.mark.default
@pytest.mark.parametrize("name", [LIBMRC, LIBMRC_CM, PROVIDER])
def test_close__the_library_stays_for_its_thread(name: str) -> None:
    """Intel MPI closes libfabric, and with it the provider, before the process ends."""
    if not (FOLDER / name).exists():
        pytest.skip(f"{name} is not built")
    lines = [
        "import _ctypes, ctypes, pathlib, sys",
        "_ctypes.dlclose(ctypes.CDLL(sys.argv[1])._handle)",
        "assert sys.argv[1] in pathlib.Path('/proc/self/maps').read_text()",
    ]
    command = [sys.executable, "-c", "\n".join(lines), str(FOLDER / name)]
    assert subprocess.run(command, check=False).returncode == 0


# ---- An agent of another user -------------------------------------------------------------------

NAME = f"@mrc-test-socket-{os.getpid()}"
_PROGRAM = """\
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
count = ctypes.c_int()
lib.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
lib.ibv_get_device_name.restype = ctypes.c_char_p
lib.ibv_get_device_name.argtypes = [ctypes.c_void_p]
found = lib.ibv_get_device_list(ctypes.byref(count))
print(*(lib.ibv_get_device_name(found[i]).decode() for i in range(count.value)))
"""


@pytest.mark.default
@needs_root
@pytest.mark.parametrize(("user", "sees"), [(0, True), (USER, False)])
def test_device__is_there_if_its_agent_is_trusted(user: int, *, sees: bool) -> None:
    environment = os.environ | {agent_socket.ENVIRONMENT: NAME}
    with squatting(NAME, user):
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(LIBRARY)], env=environment, text=True,
            capture_output=True, check=True,
        )  # fmt: skip
    assert ("mrc0" in done.stdout.split()) is sees
