# SPDX-License-Identifier: Apache-2.0
"""`mrc run` names why its agent does not start, and `mrc agent` ends by itself."""

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
from pathlib import Path
from unittest.mock import Mock

import pytest
from ports import free_port

from mrc.agent import libraries
from mrc.agent import socket as agent_socket
from mrc.agent.cli import run
from mrc.agent.cli.agent import _until_idle
from mrc.cli.main import main
from mrc.cli.output import Exit
from mrc.errors import ConfigError

pytestmark = pytest.mark.skipif(
    libraries.why_missing(libraries.LIBMRC) is not None,
    reason="libmrc is not built: apt-get install libibverbs-dev",
)


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
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(agent_socket.address_of(name))
        os.kill(agent_socket.credentials_of(asking).pid, signal.SIGTERM)


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


@pytest.mark.skipif(
    libraries.why_missing(libraries.PROVIDER) is not None,
    reason="libmrc-fi is not built: apt-get install libfabric-dev",
)
def test_hydra__options_name_the_provider() -> None:
    words = run.hydra_options()
    assert words[::3] == ["-genv"] * (len(words) // 3)
    environment = dict(zip(words[1::3], words[2::3], strict=True))
    assert environment["FI_PROVIDER"] == environment["I_MPI_OFI_PROVIDER"] == "mrc"
    assert environment["FI_PROVIDER_PATH"] == str(libraries.FOLDER)


def test_run__windows_without_mpi(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--windows", "--", "true"]) == Exit.USAGE
    assert capsys.readouterr().err == "mrc run: --windows belongs to --mpi\n"


def test_environment__has_rc_only_by_choice() -> None:
    assert "MRC_RC" not in run.environment()
    assert run.environment(rc=True)["MRC_RC"] == "1"


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


def test_run__begins_no_agent_for_a_file_that_is_not_executable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrc.agent.cli.run.environment", lambda rc: {})
    (tmp_path / "data").touch()
    assert main(["run", "--insecure", "--", str(tmp_path / "data")]) == 126
    assert "is not executable" in capsys.readouterr().err


async def test_idle__a_program_that_came_and_went_between_two_looks() -> None:
    loop = asyncio.get_running_loop()
    agent = Mock(programs=(), left=loop.time() + 0.1)
    serving = loop.create_future()
    await _until_idle(agent, serving, 0.02)
    assert loop.time() >= agent.left + 0.02
    assert serving.cancelled(), "it serves no more"
