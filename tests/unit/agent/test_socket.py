# SPDX-License-Identifier: Apache-2.0
"""An agent's socket that another user has taken."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from errno import EINVAL, EMFILE, ENFILE, ENOMEM
from functools import partial
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest
from file_commands import MRC
from processes import USER, needs_root, squatting
from slowness import PATIENCE

from mrc.agent import socket as agent_socket
from mrc.agent import steering
from mrc.enums import AgentFunction, AgentKind
from mrc.errors import ConfigError, InUseError
from mrc.linux import system
from mrc.linux.system import Process

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
    answers = [
        *(OSError(number, "too few") for number in (EMFILE, ENFILE, ENOMEM)),
        (connection, 0),
    ]
    accepted = AsyncMock(side_effect=[*answers, OSError(EINVAL, "closed")])
    monkeypatch.setattr(asyncio.get_running_loop(), "sock_accept", accepted, raising=False)
    monkeypatch.setattr(agent_socket, "_PAUSE_SECONDS", 0)
    assert await agent_socket.accept(Mock()) is connection
    assert [record.message for record in caplog.records] == [
        "cannot let further programs in: too few"
    ]
    with pytest.raises(OSError, match="closed"):
        await agent_socket.accept(Mock())


@needs_root
def test_may_attach__this_user_root_and_the_group() -> None:
    other, group = 65534, 54321
    asking = "import os, sys; os.setgroups([54321]); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-I", "-c", asking], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"\n"
        member, alone = process.pid, os.getpid()
        assert agent_socket.may_attach(agent_socket.Credentials(alone, os.geteuid(), 1), None)
        assert agent_socket.may_attach(agent_socket.Credentials(alone, 0, 1), None)
        assert not agent_socket.may_attach(agent_socket.Credentials(alone, other, group), None)
        assert agent_socket.may_attach(agent_socket.Credentials(alone, other, group), group)
        assert agent_socket.may_attach(agent_socket.Credentials(member, other, 1), group)
        assert not agent_socket.may_attach(agent_socket.Credentials(alone, other, 1), group)
        process.stdin.close()
    assert not agent_socket.may_attach(agent_socket.Credentials(member, other, 1), group), (
        "it has ended"
    )


@needs_root
def test_run__at_the_socket_of_another_user() -> None:
    environment = os.environ | {agent_socket.ENVIRONMENT: NAME}
    with squatting(NAME) as pid:
        done = subprocess.run(
            [*MRC, "run", "--", "true"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert f"mrc run: socket {NAME}: process {pid} of user {USER}" in done.stderr
