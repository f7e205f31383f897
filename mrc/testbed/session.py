# SPDX-License-Identifier: Apache-2.0
"""A process on a machine that serves its part of a test bed (`mrc.testbed.part`), and what this
machine asks it: a line of JSON for each question and each answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from typing import Any

from mrc import errors
from mrc.errors import ConnectError, MrcError, StateError
from mrc.linux import installed
from mrc.testbed.machines import Machine

HELLO = "mrc_testbed_part"
"""key of the first line, with the version of mrc"""

_BANNERS = 100  # lines that a login may print before
_END_SECONDS = 60.0


@cache
def own_version() -> str:
    """The version of mrc on this machine."""
    from importlib.metadata import version  # slow import

    return version("mrc-transport")


class Session:
    """The process on one machine, from now on until `close`. `own`: this machine is that one."""

    def __init__(self, machine: Machine, name: str, *, own: bool) -> None:
        """Does not wait. Raises ConnectError if the program that reaches the machine is missing."""
        words = ["part", "--name", name]
        argv = machine.command(words)
        if own:
            argv = [sys.executable, "-P", "-m", "mrc", "testbed", *words]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed in `close`
        try:
            # In a process group of its own: ^C at the terminal must not end it half-way.
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                process_group=0,
            )
        except FileNotFoundError as exc:
            self._errors.close()
            raise ConnectError(installed.not_found(argv[0])) from exc
        self._greeted = False

    def send(self, request: dict[str, Any]) -> None:
        """Never fails: `receive` does. Past the buffer of `stdin`: a line that cannot be written
        would stay there, and be tried again when the interpreter ends.
        """
        assert self._process.stdin is not None
        line = json.dumps(request).encode() + b"\n"
        with contextlib.suppress(OSError):
            while line:
                line = line[os.write(self._process.stdin.fileno(), line) :]

    def receive(self) -> Any:
        """The next answer. Raises ConnectError if the machine does not answer, and the MrcError
        that it answers with.
        """
        if not self._greeted:
            self._greet()
        answer = self._read()
        if "error" in answer:
            kind = getattr(errors, answer["kind"], StateError)
            raise (kind if issubclass(kind, MrcError) else StateError)(answer["error"])
        return answer["answer"]

    def _greet(self) -> None:
        for _ in range(_BANNERS):
            with contextlib.suppress(ValueError):
                found = self._read()
                if isinstance(found, dict) and HELLO in found:
                    break
        else:
            raise ConnectError("prints other lines than those of mrc testbed part")
        if found[HELLO] != own_version():
            raise StateError(
                f"has mrc {found[HELLO]}, and this machine {own_version()}: "
                "install the same version on all machines"
            )
        self._greeted = True

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):  # it may end in the middle of an answer
            raise ConnectError(self._why())
        return json.loads(line)

    def _why(self) -> str:
        """Why the process ended."""
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return said[-1].strip() if said else f"its process ended with exit code {code}"

    def end(self) -> None:
        """Has the process end, which then removes what it did not finish."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()

    def close(self) -> None:
        """Waits until the process has ended."""
        self.end()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
