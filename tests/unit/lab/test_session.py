# SPDX-License-Identifier: Apache-2.0
"""A process on another machine: its greeting, its answers and its end. `sh -c` stands for ssh."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mrc.errors import ArgumentError, ConnectError, NetlinkError, StateError
from mrc.lab.machines import BedMachine
from mrc.lab.remote import Session, own_version

HELLO = f'{{"mrc_testbed_part": "{own_version()}"}}'


@contextmanager
def session(folder: Path, script: str) -> Iterator[Session]:
    program = folder / "mrc"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    made = Session(BedMachine("b", reach="sh -c", mrc=str(program)), "lab", own=False)
    try:
        yield made
    finally:
        made.close()


def test_answers(tmp_path: Path) -> None:
    with session(
        tmp_path, f"echo Welcome; echo 17; echo '{HELLO}'; sed -u 's/.*/{{\"answer\":&}}/'"
    ) as b:
        b.send({"do": "this"})
        b.send({"do": "that"})
        assert [b.receive(), b.receive()] == [{"do": "this"}, {"do": "that"}]


@pytest.mark.parametrize(
    "kind, expected",
    [("ArgumentError", ArgumentError), ("NetlinkError", NetlinkError), ("Kind", StateError),
     ("ConnectError", ConnectError), ("no_such", StateError)],
)  # fmt: skip
def test_errors(tmp_path: Path, kind: str, expected: type[Exception]) -> None:
    answer = f'{{"error": "because", "kind": "{kind}"}}'
    with (
        session(tmp_path, f"echo '{HELLO}'; echo '{answer}'") as b,
        pytest.raises(expected, match=r"^because$"),
    ):
        b.receive()


def test_no_answer__says_the_last_line_on_stderr(tmp_path: Path) -> None:
    with (
        session(tmp_path, "echo one >&2; echo 'ssh: no route to host' >&2; exit 255") as b,
        pytest.raises(ConnectError, match=r"^ssh: no route to host$"),
    ):
        b.send({})
        b.receive()
    with session(tmp_path, "exit 3") as b, pytest.raises(ConnectError, match="with exit code 3"):
        b.receive()


def test_no_answer__that_ends_in_the_middle(tmp_path: Path) -> None:
    script = f"echo '{HELLO}'; printf '{{\"answer\": [1,'; echo powerless >&2"
    with session(tmp_path, script) as b, pytest.raises(ConnectError, match=r"^powerless$"):
        b.receive()


def test_no_answer__leaves_nothing_to_write_at_the_end_of_the_command() -> None:
    """What a pipe has not taken must not be tried again when the interpreter ends: its errors are
    printed in the development mode, and always since Python 3.13.
    """
    program = """
from mrc.lab.machines import BedMachine
from mrc.lab.remote import Session
machine = Session(BedMachine("b", reach="sh -c", mrc="exit 3; "), "lab", own=False)
machine._child.process.wait()
machine.send({})
"""
    command = [sys.executable, "-X", "dev", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "BrokenPipeError" not in done.stderr


def test_another_version(tmp_path: Path) -> None:
    with (
        session(tmp_path, 'echo \'{"mrc_testbed_part": "0.0"}\'') as b,
        pytest.raises(StateError, match=r"^has mrc 0.0, and this machine .* same version on all"),
    ):
        b.receive()


def test_another_program(tmp_path: Path) -> None:
    with session(tmp_path, "yes") as b, pytest.raises(ConnectError, match="prints other lines"):
        b.receive()


def test_no_ssh() -> None:
    with pytest.raises(ConnectError, match=r"^no-such-ssh: command not found"):
        Session(BedMachine("b", reach="no-such-ssh b"), "lab", own=False)
