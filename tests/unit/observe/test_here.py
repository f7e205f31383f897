# SPDX-License-Identifier: Apache-2.0
"""The endpoints of this machine, also those whose process does not answer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest
from snapshot_data import SNAPSHOT

from mrc.observe import local
from mrc.observe.endpoints import Here

ANSWER = json.dumps(SNAPSHOT).encode() + b"\n"
NEVER = 0.05  # seconds for an endpoint that does not answer


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for sockets without this machine's own sockets."""
    folder = tmp_path / "endpoints"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(local, "_folders", lambda all_users: iter([folder]))
    yield folder


@pytest.fixture
def stopped() -> Iterator[int]:
    """A process that was stopped."""
    with subprocess.Popen(["sleep", "600"]) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        yield process.pid
        process.kill()


def listening(path: Path) -> socket.socket:
    """The kernel takes connections to it, and nobody answers them."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    return server


@contextmanager
def endpoint(path: Path, line: bytes) -> Iterator[None]:
    """Answers each request with a line, or with an end."""

    def serve(server: socket.socket) -> None:
        with suppress(OSError):  # it has ended
            while True:
                with server.accept()[0] as visit:
                    if visit.recv(1):
                        visit.sendall(line)

    with listening(path) as server:
        thread = Thread(target=serve, args=[server])
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RD)
            thread.join()


def answer_one(server: socket.socket) -> None:
    """Answers the first request whose viewer still waits."""
    while True:
        with server.accept()[0] as visit, suppress(BrokenPipeError):
            if visit.recv(1):
                visit.sendall(ANSWER)
                return


async def test_look__names_a_process_that_is_stopped(home: Path, stopped: int) -> None:
    path = home / f"{stopped}-1.sock"
    async with Here(NEVER) as here:
        with listening(path):
            await here.look()
            here.seconds = 1e6
            with endpoint(home / "1-1.sock", ANSWER):
                seen = await here.look()
        assert list(seen.endpoints) == [str(home / "1-1.sock")]
        (silent,) = seen.unanswered
        assert silent.pid == stopped and silent.program == "sleep"
        assert silent.error == f"no answer in 0.05 s: the process is stopped (kill -CONT {stopped})"
        assert not (await here.look()).unanswered, "it has ended"


async def test_look__waits_once_for_what_does_not_answer(home: Path) -> None:
    """Others are shown without a delay; a late answer counts when it comes."""
    path = home / "1-1.sock"
    async with Here(NEVER) as here:
        with listening(path) as silent:
            assert len((await here.look()).unanswered) == 1
            here.seconds = 1e6
            assert len((await here.look()).unanswered) == 1
            await asyncio.to_thread(answer_one, silent)
            seen = await here.look()
            while seen.unanswered:
                await asyncio.sleep(0)
                seen = await here.look()
            assert list(seen.endpoints) == [str(path)]


async def test_look__many_that_do_not_answer(home: Path) -> None:
    """They take no turns of others."""
    async with Here(NEVER) as here:
        with ExitStack() as stack:
            for number in range(12):
                stack.enter_context(listening(home / f"1-{number}.sock"))
            await here.look()
            here.seconds = 1e6
            stack.enter_context(endpoint(home / "1-99.sock", ANSWER))
            seen = await here.look()
            assert len(seen.unanswered) == 12 and len(seen.endpoints) == 1


@pytest.mark.parametrize("line", [b"{}\n", b""], ids=["another version", "no place for a viewer"])
async def test_look__names_an_endpoint_that_cannot_be_read(home: Path, line: bytes) -> None:
    with endpoint(home / "1-1.sock", line):
        async with Here(60) as here:
            (found,) = (await here.look()).unanswered
    assert found.pid == 1 and found.error


async def test_look__names_an_endpoint_whose_queue_is_full(home: Path) -> None:
    """Each earlier viewer of a stopped process has taken a place in it."""
    with socket.socket(socket.AF_UNIX) as server, ExitStack() as viewers:
        server.bind(str(home / "1-1.sock"))
        server.listen(0)
        viewers.enter_context(socket.socket(socket.AF_UNIX)).connect(server.getsockname())
        async with Here(60) as here:
            (found,) = (await here.look()).unanswered
            assert found.error == "too many viewers wait for an answer"
