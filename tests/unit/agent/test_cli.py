# SPDX-License-Identifier: Apache-2.0
"""mrc agent, mrc run, the libraries that it preloads, and the socket of the agent."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from errno import EINVAL, EMFILE, ENFILE, ENOMEM
from functools import partial
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest
from file_commands import MRC
from ports import free_port
from processes import USER, needs_root, squatting
from slowness import PATIENCE
from verbs.building import LIBRARY

from mrc.agent import libraries, steering
from mrc.agent import socket as agent_socket
from mrc.agent.cli import run
from mrc.agent.cli.agent import _until_idle
from mrc.agent.socket import AgentFunction
from mrc.agent.steering import AgentKind
from mrc.cli.main import main
from mrc.cli.output import Exit
from mrc.doctor import Finding, State
from mrc.errors import ConfigError, InUseError
from mrc.linux import system
from mrc.linux.system import Process

needs_libmrc = pytest.mark.skipif(
    libraries.why_missing(libraries.LIBMRC) is not None,
    reason="libmrc is not built: apt-get install libibverbs-dev",
)


@needs_libmrc
def test_run__the_port_is_in_use() -> None:
    """The agent has its socket before its port."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = str(held.getsockname()[1])
        options = ["--insecure", "--bind", "127.0.0.1", "--port", port, "-B", "lo"]
        done = subprocess.run(
            [sys.executable, "-m", "mrc", "run", *options, "--", "true"],
            env={**os.environ, "MRC_AGENT": f"@mrc-test-run-{os.getpid()}"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        f"mrc run: the agent did not start: TCP port {port} is in use: choose another\n"
    )


@needs_libmrc
def test_await_agent__the_machine_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent gets time to answer after the deadline too: it stood still as well."""
    monkeypatch.setattr(run, "_START_SECONDS", -1.0)
    monkeypatch.setattr(agent_socket, "is_open", lambda name: True)
    answers, given = [True, False], []

    def answer(name: str, seconds: float) -> bool:
        given.append(seconds)
        return answers.pop()

    monkeypatch.setattr(agent_socket, "answers", answer)
    run._await_agent(Namespace())
    assert given == [1.0, 1.0]
    answers[:] = [False, False]
    with pytest.raises(ConfigError, match="no agent answered"):
        run._await_agent(Namespace())


@needs_libmrc
def test_start_agent__its_code_would_be_seen_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MRC_CODE", raising=False)
    with pytest.raises(ConfigError, match="start mrc agent --code first"):
        run._start_agent(Namespace(code=True), Mock())


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs `mrc run` with these options in one environment, in which agents stay until the end."""
    (tmp_path / "other").mkdir()
    secret = tmp_path / "one.key"
    for path, content in ((secret, 32 * "1"), (tmp_path / "other/one.key", 32 * "2")):
        path.write_text(content)
        path.chmod(0o600)
    shutil.copy(secret, tmp_path / "same.key")
    name = f"@mrc-test-lasting-{os.getpid()}"
    port = str(free_port())

    def start(*options: str | Path, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        words = [*options, "--bind", "127.0.0.1", "--port", port, "-B", "lo", "--", "true"]
        return subprocess.run(
            [sys.executable, "-m", "mrc", "run", *map(str, words)], cwd=cwd,
            env=os.environ | {"MRC_AGENT": name}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    yield start
    os.kill(agent_socket.agent_pid(name), signal.SIGTERM)


@needs_libmrc
@pytest.mark.more
def test_run__an_agent_with_other_options_runs(
    tmp_path: Path, lasting: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """The program would run unencrypted, or with other peers, than its user has asked for."""
    assert lasting("--secret", "one.key").returncode == 0
    assert lasting("--secret", tmp_path / "same.key").returncode == 0, "the same secret"
    assert lasting().returncode == 0, "no wish"
    for options, name in (
        (("--insecure",), "--insecure"),
        (("--secret", "one.key", "--seal", "none"), "--seal"),
    ):
        done = lasting(*options)
        assert done.returncode == 1
        agent = r"the agent that runs \(process \d+\)"
        text = rf"mrc run: {name}: {agent} has another: end it, or leave out {name}\n"
        assert re.fullmatch(text, done.stderr)
    done = lasting("--secret", "one.key", cwd=tmp_path / "other")
    assert done.stderr.startswith("mrc run: --secret: the agent that runs")


@needs_libmrc
@pytest.mark.skipif(
    libraries.why_missing(libraries.PROVIDER) is not None,
    reason="libmrc-fi is not built: apt-get install libfabric-dev",
)
def test_hydra__options_name_the_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of this clone may have a blank, which they refuse."""
    (folder := tmp_path / "lib").symlink_to(libraries.FOLDER)
    monkeypatch.setattr(libraries, "FOLDER", folder)
    words = run.hydra_options()
    assert words[::3] == ["-genv"] * (len(words) // 3)
    environment = dict(zip(words[1::3], words[2::3], strict=True))
    assert environment["FI_PROVIDER"] == environment["I_MPI_OFI_PROVIDER"] == "mrc"
    assert environment["FI_PROVIDER_PATH"] == str(folder)


@needs_libmrc
def test_run__windows_without_mpi(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--windows", "--", "true"]) == Exit.USAGE
    assert capsys.readouterr().err == "mrc run: --windows belongs to --mpi\n"


@needs_libmrc
def test_environment__has_rc_only_by_choice() -> None:
    assert "MRC_RC" not in run.environment()
    assert run.environment(rc=True)["MRC_RC"] == "1"


@needs_libmrc
def test_environment__of_a_folder_whose_path_has_blanks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """ld.so splits LD_PRELOAD at blanks: a program must load libmrc, and the shell must read it."""
    folder = tmp_path / "a user's clone" / "lib"
    shutil.copytree(libraries.FOLDER, folder, symlinks=True)
    monkeypatch.setattr(libraries, "FOLDER", folder)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert main(["run", "--env"]) == Exit.OK
    told = subprocess.run(
        ["sh", "-c", 'eval "$1" && exec cat /proc/self/maps', "sh", capsys.readouterr().out],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not told.stderr and f"{folder}/{libraries.LIBMRC}" in told.stdout


@needs_libmrc
@pytest.mark.parametrize(
    ("name", "options", "reader"),
    [
        ("a:b", "--env", "LD_LIBRARY_PATH"),
        ("a:b", "--mpi", "FI_PROVIDER_PATH"),
        ("a b", "--mpi", "the shell in mpirun"),
        ("a b", "--hydra", "the shell in mpirun"),
    ],
)
def test_run__a_folder_that_its_reader_would_split(
    name: str, options: str, reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = tmp_path / name
    folder.mkdir()
    for library in (libraries.LIBMRC, libraries.PROVIDER):
        (folder / library).touch()
    monkeypatch.setattr(libraries, "FOLDER", folder)
    assert main(["run", options]) == Exit.FAILED
    said = capsys.readouterr().err
    assert f"'{folder}', which {reader}" in said and said.count("\n") == 1


@needs_libmrc
def test_run__begins_no_agent_for_a_file_that_is_not_executable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrc.agent.cli.run.environment", lambda rc: {})
    (tmp_path / "data").touch()
    assert main(["run", "--insecure", "--", str(tmp_path / "data")]) == 126
    assert "is not executable" in capsys.readouterr().err


@needs_libmrc
async def test_idle__a_program_that_came_and_went_between_two_looks() -> None:
    loop = asyncio.get_running_loop()
    agent = Mock(programs=(), left=loop.time() + 0.1)
    serving = loop.create_future()
    await _until_idle(agent, serving, 0.02)
    assert loop.time() >= agent.left + 0.02
    assert serving.cancelled(), "it serves no more"


# ---- Libraries ----------------------------------------------------------------------------------


def found_of_verbs() -> Finding:
    (found,) = (each for each in libraries.examine() if each.name == "libmrc")
    return found


def test_verbs__is_one_of_the_findings() -> None:
    found = found_of_verbs()
    assert found.state is (State.OK if LIBRARY.exists() else State.LIMITED)
    assert re.search("agent runs|not built", found.found)


@pytest.mark.skipif(not LIBRARY.exists(), reason="libmrc is not built")
def test_verbs__names_the_agent_that_programs_would_find(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"@mrc-test-doctor-{os.getpid()}"
    monkeypatch.setenv(agent_socket.ENVIRONMENT, name)
    assert found_of_verbs().found == "device mrc0; no agent runs"
    with agent_socket.listen(name):
        assert found_of_verbs().found == "device mrc0; an agent runs"


@needs_root
@pytest.mark.skipif(not LIBRARY.exists(), reason="libmrc is not built")
def test_verbs__names_another_user_at_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"@mrc-test-doctor-{os.getpid()}"
    monkeypatch.setenv(agent_socket.ENVIRONMENT, name)
    with squatting(name) as pid:
        found = found_of_verbs()
    assert found.state is State.LIMITED
    assert found.found == f"socket {name}: process {pid} of user {USER} has taken it"
    assert found.remedy == "end that, or name another with MRC_AGENT"


@pytest.mark.parametrize("name", ["libmrc", "libmrc-cm", "libmrc-fi"])
def test_library__that_does_not_load(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "FOLDER", tmp_path)
    names = libraries.LIBMRC, libraries.LOADED_NAME, libraries.LIBMRC_CM, libraries.PROVIDER
    for each in names:
        (tmp_path / each).write_bytes(b"no library")
    findings = libraries.examine()
    (found,) = (each for each in findings if each.name == name)
    assert found.state is State.LIMITED and found.consequence
    assert found.found.startswith("does not load: ") and str(tmp_path) in found.found


def test_library__whose_build_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "FOLDER", tmp_path)
    assert libraries.examine()[2].remedy == "install libfabric-dev, then mrc again"
    (tmp_path / "libmrc-fi.so.error").write_text("info.c:7: error: no such field\n")
    found = libraries.examine()[2]
    assert found.state is State.LIMITED
    assert found.found == "not built: info.c:7: error: no such field"
    assert found.remedy == "install another version of libfabric-dev, then mrc again"


# ---- The socket ---------------------------------------------------------------------------------

NAME = f"@mrc-test-socket-{os.getpid()}"


@needs_root
@pytest.mark.parametrize(
    "ask",
    [
        agent_socket.listen,
        agent_socket.is_open,
        agent_socket.profiles,
        partial(agent_socket.answers, seconds=PATIENCE),
    ],
    ids=["listen", "is_open", "profiles", "answers"],
)
def test_socket__of_another_user(ask: Callable[[str], object]) -> None:
    with squatting(NAME) as pid, pytest.raises(ConfigError) as raised:
        ask(NAME)
    who = f"socket {NAME}: process {pid} of user {USER} has taken it"
    assert str(raised.value) == f"{who}: end that, or name another with MRC_AGENT"


def test_socket__of_this_user() -> None:
    assert not agent_socket.is_open(NAME)
    with agent_socket.listen(NAME):
        assert agent_socket.is_open(NAME)
        with pytest.raises(InUseError):
            agent_socket.listen(NAME)


def test_listen__where_no_socket_can_be(tmp_path: Path) -> None:
    name = str(tmp_path / "missing" / "agent")
    with pytest.raises(ConfigError, match=f"socket {name}: No such file or directory"):
        agent_socket.listen(name)


def test_profiles__no_agent_runs() -> None:
    with pytest.raises(ConfigError, match=f"socket {NAME}: start it with mrc agent"):
        agent_socket.profiles(NAME)


def test_profiles__the_agent_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_socket, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(system, "process", lambda pid: Process("mrc", "T" * (pid == os.getpid())))
    with (
        agent_socket.listen(NAME),
        pytest.raises(ConfigError, match="does not answer: is it stopped"),
    ):
        agent_socket.profiles(NAME)


def test_profiles__the_agent_answers_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no reason to call it stopped."""
    refusal = steering.pack(AgentKind.REFUSED, AgentFunction.PROFILES, body=b"none here")
    monkeypatch.setattr(agent_socket, "_LOOK_SECONDS", 0.01)
    with agent_socket.listen(NAME) as listener:

        def look(pid: int) -> Process:
            accepted.append(listener.accept()[0])
            accepted[-1].send(refusal)
            return Process("mrc", "R")

        accepted: list[socket.socket] = []
        monkeypatch.setattr(system, "process", look)
        with pytest.raises(ConfigError, match="none here"):
            agent_socket.profiles(NAME)
        accepted[0].close()
    assert len(accepted) == 1


def test_listen__removes_the_socket_of_a_killed_agent(tmp_path: Path) -> None:
    name = str(tmp_path / "agent")
    agent_socket.listen(name).close()
    assert not agent_socket.is_open(name)
    with agent_socket.listen(name):
        assert agent_socket.is_open(name)


async def test_accept__waits_for_descriptors_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connection = Mock()
    few = [OSError(number, "too few") for number in (EMFILE, ENFILE, ENOMEM)]
    accepted = AsyncMock(side_effect=[*few, (connection, 0), OSError(EINVAL, "closed")])
    monkeypatch.setattr(asyncio.get_running_loop(), "sock_accept", accepted, raising=False)
    monkeypatch.setattr(agent_socket, "_PAUSE_SECONDS", 0)
    assert await agent_socket.accept(Mock()) is connection
    (record,) = caplog.records
    assert record.message == "cannot let further programs in: too few"
    with pytest.raises(OSError, match="closed"):
        await agent_socket.accept(Mock())


@needs_root
def test_may_attach__this_user_root_and_the_group() -> None:
    other, group = 65534, 54321
    asking = "import os, sys; os.setgroups([54321]); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-I", "-c", asking]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"\n"
        member, alone = process.pid, os.getpid()
        for pid, user, of_group, admitted, may in (
            (alone, os.geteuid(), 1, None, True),
            (alone, 0, 1, None, True),
            (alone, other, group, None, False),
            (alone, other, group, group, True),
            (member, other, 1, group, True),
            (alone, other, 1, group, False),
        ):
            found = agent_socket.may_attach(agent_socket.Credentials(pid, user, of_group), admitted)
            assert found is may
        process.stdin.close()
    ended = agent_socket.Credentials(member, other, 1)
    assert not agent_socket.may_attach(ended, group), "it has ended"


@needs_root
def test_run__at_the_socket_of_another_user() -> None:
    environment = os.environ | {agent_socket.ENVIRONMENT: NAME}
    with squatting(NAME) as pid:
        command = [*MRC, "run", "--", "true"]
        done = subprocess.run(command, env=environment, stderr=-1, text=True, check=False)
    assert done.returncode == 1
    assert f"mrc run: socket {NAME}: process {pid} of user {USER}" in done.stderr
