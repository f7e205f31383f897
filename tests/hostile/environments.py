# SPDX-License-Identifier: Apache-2.0
"""Runs `mrc` in an environment that fails it, and judges how it ended."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cbuild import FAST, shared_library
from slowness import PATIENCE

HERE = Path(__file__).parent
_REPORT = struct.Struct("Q56s")  # struct report of shim.c
# A file may name modules to import first; it is written if it does not exist.
_LAUNCH = """\
import contextlib, importlib, os, sys
from mrc.cli.main import main
modules = os.environ.pop("MRC_HOSTILE_MODULES")
known = os.path.exists(modules)
if known:
    with open(modules) as file:
        for name in file.read().split():
            with contextlib.suppress(ImportError):  # a module may rename others
                importlib.import_module(name)
def tell(event="os.exec", _=None):
    if event == "os.exec" and modules and not known:
        with open(modules, "w") as file:
            file.write(" ".join(sys.modules))
sys.addaudithook(tell)
os.access("/hostile-begins", 0)
code = main()
os.access("/hostile-ends", 0)
tell()
sys.exit(code)
"""
# What a user must never see, of the interpreter, asyncio and the shell.
_CRASHES = re.compile(
    "Traceback|Exception ignored|Fatal Python|never awaited|never retrieved|was destroyed"
    "|Segmentation|Aborted|Assertion|core dumped|bug in"
)
# What uvloop says itself when it cannot start a process.
_UVLOOP = re.compile(
    "(.*UVProcessTransport is open in __dealloc__|Exception ignored in: 'uvloop).*\n"
)
ALL = 1 << 32
"""of the calls fail"""


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str
    calls: int
    """of the kind that were counted"""
    failed: str
    """the function whose call failed first"""

    def judge(self, allowed: Sequence[int]) -> None:
        """One of these exit codes, no crash, and only lines of mrc, which name a failure."""
        assert self.code in allowed, self
        said = _UVLOOP.sub("", self.err)
        assert not _CRASHES.search(said), self
        lines = said.splitlines()
        assert all(line.startswith("mrc") for line in lines), self
        doctor = re.search("^missing ", self.out, re.MULTILINE)
        assert self.code in (0, 143, -15) or lines or doctor, self


@dataclass
class Calls:
    """The calls of a kind (files, memory, clock), of which some fail."""

    kind: str = "none"
    first: int = 0
    """the first that fails; 0: none, they are only counted"""
    most: int = 1
    modules: str = ""
    """a file: the command imports the modules that it names before calls count, or names them"""
    _report: str = field(init=False)

    def environment(self) -> dict[str, str]:
        """What the shim reads."""
        with tempfile.NamedTemporaryFile(delete=False) as file:
            file.write(bytes(_REPORT.size))
        self._report = file.name
        shim = shared_library([HERE / "shim.c"], "hostile", FAST)
        said = f"{self.kind}:{self.first}:{self.most}:{file.name}"
        return {  # by name: a path may have blanks, at which LD_PRELOAD is split
            "LD_PRELOAD": shim.name, "LD_LIBRARY_PATH": str(shim.parent),
            "MRC_HOSTILE": said, "MRC_HOSTILE_MODULES": self.modules,
        }  # fmt: skip

    def counted(self) -> tuple[int, str]:
        """How many there were, and the function that failed."""
        data = Path(self._report).read_bytes()
        os.unlink(self._report)
        calls, failed = _REPORT.unpack(data)
        return calls, failed.rstrip(b"\0").decode()


@contextmanager
def started(
    words: Sequence[str], calls: Calls, home: Path, before: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """The command, while it runs; `before`: words before it, which nothing fails."""
    environment = os.environ | calls.environment() | {
        "HOME": str(home), "MRC_AGENT": str(home / "agent"),
    }  # fmt: skip
    with subprocess.Popen(
        [*before, sys.executable, "-c", _LAUNCH, *words], env=environment, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str], calls: Calls, said: str = "") -> Done:
    """Waits for the end; `said`: what was read of its stderr."""
    out, err = process.communicate(timeout=PATIENCE)
    return Done(process.returncode, out, said + err, *calls.counted())


def run(words: Sequence[str], calls: Calls, home: Path, before: Sequence[str] = ()) -> Done:
    """Runs a command to its end."""
    with started(words, calls, home, before) as process:
        return ended(process, calls)
