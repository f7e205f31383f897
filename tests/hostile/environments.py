# SPDX-License-Identifier: Apache-2.0
"""Runs `mrc` in an environment that fails it, and judges how it ended: what each command does
there, and what must be true after it.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cbuild import FAST, shared_library
from file_commands import MRC, listening
from slowness import PATIENCE
from wire.golden import GOLDEN, frame, write

from mrc.dissect.cli import LUA
from mrc.linux import netns

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


# ---- what each command does ----------------------------------------------------------------------

_USER = ["--user", "--map-root-user"] if netns.lacks() else []
NAMESPACES = ["unshare", *_USER, "--net", "--mount", "--pid", "--fork", "--kill-child",
              "--mount-proc"]  # fmt: skip

_DATA = bytes(range(256)) * 4096  # one chunk of a transfer, and a mapped file


class Place:
    """Folders of one run, and what must be true after it."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.inbox = folder / "inbox"
        self.source = folder / "source"
        for each in (self.home, self.inbox):
            each.mkdir(parents=True)
        self.source.write_bytes(_DATA)

    def typed(self, text: str, where: str = "") -> list[str]:
        """The words of a command, with the folders of this place and the address of a server."""
        names = {"HOME": self.home, "INBOX": self.inbox, "SOURCE": self.source, "HOST": where}
        words = text.split()
        for name, value in names.items():
            words = [word.replace(name, str(value)) for word in words]
        return words

    def judge(self, done: Done, *, stored: bool) -> None:
        """`stored`: some end has said so. A file has its name only when it is complete."""
        named = [each for each in self.inbox.iterdir() if not each.name.startswith(".")]
        assert [each.name for each in named] in (["source"], []), done
        assert all(each.read_bytes() == _DATA for each in named), done
        assert named or not stored, done

    def files(self) -> list[Path]:
        """In the home folder."""
        return [each for each in self.home.rglob("*") if each.is_file()]


def _calls(server: str, words: str, place: Place, calls: Calls) -> Done:
    """A command that calls a server."""
    sends = "SOURCE" in words
    with listening(*place.typed(server)) as (_, _, where):
        done = run(place.typed(words, where), calls, place.home)
    done.judge((0, 1, 3, 6) if sends else (0, 1, 3))
    place.judge(done, stored=sends and done.code == 0)
    return done


def _serves(words: str, client: str, place: Place, calls: Calls) -> Done:
    """A command that listens, for one client."""
    code, said = 1, ""
    with started(place.typed(words), calls, place.home) as server:
        assert server.stderr is not None
        for line in server.stderr:
            said += line
            if port := re.search(r"TCP port (\d+)", line):
                whole = [*MRC, *place.typed(client, f"127.0.0.1:{port[1]}")]
                code = subprocess.run(whole, capture_output=True, check=False).returncode
                break
        if code:
            server.terminate()  # it may wait for another client
        done = ended(server, calls, said)
    done.judge((0, 1, 3, 6, 143, -15))  # -15: it was about to end
    assert code in (0, 1, 3, 4, 6), (code, done)
    place.judge(done, stored="SOURCE" in client and 0 in (code, done.code))
    return done


def _runs(words: str, place: Place, calls: Calls) -> Done:
    write(place.home.parent / "capture.pcap", [frame(each.packet, each.flow) for each in GOLDEN])
    done = run(place.typed(words), calls, place.home)
    done.judge((0, 1))
    left = place.files()
    assert all(each.name in ("identity.pem", "secret") for each in left), left
    assert all(each.stat().st_size for each in left), left
    return done


def _installs(place: Place, calls: Calls) -> Done:
    """The dissector for Wireshark: all of it or nothing."""
    done = run(["dissect", "--install"], calls, place.home)
    done.judge((0, 1))
    left = place.files()
    assert [each.read_bytes() for each in left] in ([], [LUA.read_bytes()]), left
    assert left or done.code, done
    return done


# A test bed of its own in /run and /dev/shm of its own. It prints what is left in them.
_IN_BED = """
left="$1"; python="$2"; act="$3"; shift 3
testbed() { env -u MRC_HOSTILE "$python" -m mrc testbed "$@" > /dev/null 2>&1 || exit 77; }
for each in /run /dev/shm; do mount -t tmpfs none $each || exit 77; done
ip link set lo up || exit 77
[ "$act" != up ] || testbed up --planes 2 --t1 1
"$@"
code=$?
[ "$act" != down ] || testbed down
find /run/netns /run/mrc /dev/shm -mindepth 1 > "$left" 2>/dev/null
exit $code
"""
_BED = ["testbed", "up", "--planes", "2", "--t1", "1"]
_DEMO = ["demo", "--name", "lab", "--planes", "2", "--t1", "1", "--size", "48MiB", "--quiet"]


def _in_bed(words: Sequence[str], place: Place, calls: Calls, *, up: bool = False) -> Done:
    """`up`: in hosts that are there. Nothing is left after a failure. One that lasts may keep the
    command from removing its test bed, but not a later `down`.
    """
    left = place.home.parent / "left"
    act = "up" if up else "down" if calls.most == ALL else ""
    before = [*NAMESPACES, "sh", "-c", _IN_BED, "sh", str(left), sys.executable, act]
    done = run(words, calls, place.home, before)
    done.judge((0, 1))
    stays = up or (words == _BED and done.code == 0 and act != "down")
    assert bool(left.read_text()) == stays, (left.read_text(), done)
    return done


_RECV = "recv --once --output INBOX"
Row = Callable[[Place, Calls], Done]
ROWS: dict[str, Row] = {
    "send": partial(_calls, _RECV, "send --retry 0 SOURCE HOST"),
    "recv": partial(_serves, f"{_RECV} --port 0", "send --retry 0 SOURCE HOST"),
    "paths": partial(_calls, _RECV, "paths HOST"),
    "perf": partial(_calls, "perf --server", "perf HOST -n 1M --json"),
    "secret": partial(_runs, "key --secret HOME/secret"),
    "key": partial(_runs, "key"),
    "top": partial(_runs, "top --local --once -i 0.01"),
    "doctor": partial(_runs, "doctor"),
    "schema": partial(_runs, "schema perf"),
    "sim": partial(_runs, "sim list"),
    "plan": partial(_runs, "testbed plan"),
    "run": partial(_runs, "run --libdir"),
    "profiles": partial(_runs, "agent profiles"),
    "agent": partial(_runs, "agent --idle 0.05 --insecure --port 0"),
    "serve": partial(_serves, "perf --server --one-off --port 0", "perf HOST -n 1M --json"),
    "dissect": partial(_runs, "dissect --verbose HOME/../capture.pcap"),
    "install": _installs,
    "completion": partial(_runs, "completion bash"),
    "up": partial(_in_bed, _BED),
    "exec": partial(_in_bed, ["testbed", "exec", "h0", "--", "true"], up=True),
    "demo": partial(_in_bed, _DEMO),
}
