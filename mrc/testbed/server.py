# SPDX-License-Identifier: Apache-2.0
"""The process that works on one test bed for a program that uses `mrc.testbed`.

Only a process with one thread can join the user namespace of an ordinary user's test beds, so a
program with an event loop has this one do it, also as root. It outlives a program that crashes:
when its input ends, it takes down the test bed that it has built. What it leaves if it is killed
as well, the next such process takes down. A request is a line of JSON, and
so is an answer.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, BinaryIO

from mrc import errors
from mrc.errors import ArgumentError, MrcError, StateError
from mrc.linux import netns, system
from mrc.results import plain
from mrc.testbed import operations, rootless, state
from mrc.testbed.bed import Testbed
from mrc.testbed.results import Status
from mrc.testbed.signals import interruptible, undisturbed

# nsenter leaves the working directory behind, with the mounts that it belongs to.
_IN_FOLDER = 'cd "$0" && exec "$@"'


def answered(answer: dict[str, Any]) -> Any:
    """What an answer has; raises the MrcError that it has instead."""
    if "error" in answer:
        if answer["kind"] == TypeError.__name__:
            raise TypeError(answer["error"])
        kind = getattr(errors, answer["kind"], StateError)
        raise (kind if issubclass(kind, MrcError) else StateError)(answer["error"])
    return answer["answer"]


def answer_of(action: Callable[[], object]) -> dict[str, Any]:
    """The answer that has the result of an action, or its error."""
    try:
        return {"answer": plain(action())}
    except MrcError as exc:
        return {"error": str(exc), "kind": type(exc).__name__}
    except ValueError as exc:
        return {"error": str(exc), "kind": ArgumentError.__name__}
    except TypeError as exc:  # of an argument: the test bed goes on
        return {"error": str(exc), "kind": TypeError.__name__}
    except OSError as exc:
        return {"error": str(exc), "kind": StateError.__name__}


class _Server:
    def __init__(self) -> None:
        self._bed: Testbed | None = None
        self._keeper = ""
        """the process id of the keeper, if this process has joined its namespaces"""
        self.built = ExitStack()
        """takes down what this process has built"""

    def serve(self, requests: BinaryIO, answers: BinaryIO) -> None:
        for line in requests:
            request = json.loads(line)
            does: Callable[..., object] = getattr(self, request.pop("do"))
            answer = answer_of(lambda: does(**request))  # noqa: B023  # it is called at once
            answers.write(json.dumps(answer).encode() + b"\n")
            answers.flush()

    # ---- Requests ---------------------------------------------------------------------------

    def up(self, name: str | None, shape: Any) -> object:
        self._join(create=True)
        for each in state.abandoned():
            operations.down(each)
        wanted = state.decode(shape).shape
        bed = Testbed.of(_free_name() if name is None else name, wanted)
        if not bed.up():
            raise StateError(
                f"test bed {bed.name} is up already: mrc.testbed.existing({bed.name!r}) has it"
            )
        self.built.push(bed.__exit__)
        state.own(bed.name)  # until this process ends
        self._bed = bed
        return self._description()

    def existing(self, name: str) -> object:
        if not self._join(create=False):
            raise StateError(f"test bed {name} is not up: mrc testbed up --name {name}")
        bed = Testbed.existing(name)
        if bed.machines is not None:
            raise StateError(f"test bed {name} is over several machines: use the commands for it")
        self._bed = bed
        return self._description()

    def fail(self, **fault: Any) -> object:
        return operations.fail(self._own(), **fault)

    def heal(self, target: str) -> object:
        return operations.heal(self._own(), target)

    def drain(self, target: str) -> object:
        return operations.drain(self._own(), target)

    def undrain(self, target: str) -> object:
        return operations.undrain(self._own(), target)

    def status(self, seconds: float) -> Status:
        bed = self._own()
        found = operations.look(bed.name, seconds, lambda line: None)
        if found is None:
            raise StateError(f"test bed {bed.name} is not up")
        return found.status

    def command(self, host: str, words: list[str], user: str | None, folder: str) -> object:
        """Arguments that run a command in a host, and what is in its environment."""
        argv, environment = self._own().host_command(host, words, user=user)
        if self._keeper:
            nsenter, shell = system.require("nsenter", "sh")
            enter = [nsenter, f"--target={self._keeper}", "--user", "--mount", "--net"]
            argv = [*enter, "--preserve-credentials", shell, "-c", _IN_FOLDER, folder, *argv]
        own = os.environ.items()
        return {"argv": argv, "environment": dict(environment.items() - own)}

    def down(self) -> object:
        bed = self._own()
        self.built.pop_all()
        return bed.down()

    # ---- Its test bed -----------------------------------------------------------------------

    def _description(self) -> object:
        bed = self._own()
        return {"name": bed.name, "state": state.encode(state.BedState(bed.shape))}

    def _own(self) -> Testbed:
        assert self._bed is not None
        return self._bed

    def _join(self, *, create: bool) -> bool:
        lacks = netns.lacks()
        if not rootless.enter(create=create):
            return False
        if lacks:
            self._keeper = os.environ.pop(rootless.KEEPER)
        return True


def _free_name() -> str:
    return next(name for name in iter(_drawn_name, "") if name not in state.names())


def _drawn_name() -> str:
    return f"bed-{secrets.token_hex(4)}"


def main() -> None:
    server = _Server()
    try:
        with interruptible():
            server.serve(sys.stdin.buffer, sys.stdout.buffer)
    finally:
        with undisturbed():
            server.built.close()
            rootless.leave(state.names)


if __name__ == "__main__":
    main()
