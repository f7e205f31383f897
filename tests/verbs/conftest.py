# SPDX-License-Identifier: Apache-2.0
"""Programs over libmrc, on loopback with an agent of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ports import free_port
from skips import mark
from slowness import PATIENCE, until
from verbs.building import LIBRARY, ROOT, compiled

from mrc.agent import socket as agent_socket

SAID_OF_RC = (
    "libmrc: --rc: SEND, READ, ATOMIC and SRQs are emulated over WRITEs of MRC, which has no"
    " others\n"
)


def missing_library() -> str | None:
    return None if LIBRARY.exists() else "libmrc is not built: apt-get install libibverbs-dev"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, Path(__file__).parent, missing_library)


@dataclass
class Agent:
    """`mrc agent` as a process, and programs that use it."""

    process: subprocess.Popen[bytes]
    environment: dict[str, str]
    port: int

    @classmethod
    def start(cls, environment: dict[str, str], port: int) -> Agent:
        command = [sys.executable, "-m", "mrc", "agent", "--port", str(port), "--insecure"]
        command += ["--bind", "127.0.0.1", "-B", "lo", "--quiet"]
        agent = cls(subprocess.Popen(command, env=environment), environment, port)
        name = agent_socket.name_of(environment)
        until(lambda: agent.process.poll() is not None or agent_socket.is_open(name))
        assert agent.process.poll() is None
        return agent

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def started(
        self, *command: str | Path, cwd: Path | None = None, rc: bool = False
    ) -> subprocess.Popen[str]:
        """A program, started with `mrc run`."""
        options = ["--rc"] if rc else []
        words = [sys.executable, "-m", "mrc", "run", *options, "--", *map(str, command)]
        environment = self.environment | {"PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=cwd,
        )  # fmt: skip

    def linked(self, *command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        """Runs a program that is linked with libmrc; `more`: variables of its environment."""
        return subprocess.run(
            command, env=self.environment | more, capture_output=True, text=True, timeout=PATIENCE
        )

    def output(
        self, *command: str | Path, cwd: Path | None = None, rc: bool = False
    ) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of a program."""
        with self.started(*command, cwd=cwd, rc=rc) as process:
            try:
                out, err = process.communicate(timeout=PATIENCE)
            finally:
                process.kill()
        return process.returncode, out, err


@pytest.fixture
def agent() -> Iterator[Agent]:
    environment = os.environ | {agent_socket.ENVIRONMENT: f"@mrc-test-{os.getpid()}"}
    started = Agent.start(environment, free_port())
    yield started
    started.kill()


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the C programs beside this file, compiled and linked with libmrc."""
    return compiled(tmp_path_factory.mktemp("programs"))
