# SPDX-License-Identifier: Apache-2.0
"""What each command does in a hostile environment, and what must be true after it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from file_commands import MRC, receiving
from hostile.environments import ALL, Calls, Done, ended, run, started
from slowness import PATIENCE
from wire.golden import GOLDEN, frame, write

from mrc.dissect.cli import LUA
from mrc.linux import netns

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

    def judge(self, done: Done, *, stored: bool) -> None:
        """`stored`: some end has said so. A file has its name only when it is complete."""
        named = [each for each in self.inbox.iterdir() if not each.name.startswith(".")]
        assert [each.name for each in named] in (["source"], []), done
        assert all(each.read_bytes() == _DATA for each in named), done
        assert named or not stored, done


def _sends(place: Place, calls: Calls) -> Done:
    with receiving("--output", place.inbox) as (receiver, where):
        done = run(["send", "--retry", "0", str(place.source), where], calls, place.home)
        receiver.terminate()
    done.judge((0, 1, 3, 6))
    place.judge(done, stored=done.code == 0)
    return done


def _served(words: Sequence[str], client: Sequence[str], place: Place, calls: Calls
            ) -> tuple[int, Done]:  # fmt: skip
    """A command that listens, and the exit code of its client, which gets its address."""
    code = 1
    with started(words, calls, place.home) as server:
        assert server.stderr is not None
        said = ""
        for line in server.stderr:
            said += line
            if port := re.search(r"TCP port (\d+)", line):
                whole = [*MRC, *client, f"127.0.0.1:{port[1]}"]
                code = subprocess.run(whole, capture_output=True, check=False).returncode
                break
        if code:
            server.terminate()  # it may wait for another client
        done = ended(server, calls, said)
    done.judge((0, 1, 3, 6, 143, -15))  # -15: it was about to end
    assert code in (0, 1, 3, 4, 6), (code, done)
    return code, done


def _receives(place: Place, calls: Calls) -> Done:
    words = ["recv", "--once", "--port", "0", "--output", str(place.inbox)]
    sent, done = _served(words, ["send", "--retry", "0", str(place.source)], place, calls)
    place.judge(done, stored=sent == 0 or done.code == 0)
    return done


def _serves(place: Place, calls: Calls) -> Done:
    """The other end of a performance test."""
    words = ["perf", "--server", "--one-off", "--port", "0"]
    return _served(words, ["perf", "-n", "1M", "--json"], place, calls)[1]


def _runs(words: list[str], place: Place, calls: Calls) -> Done:
    done = run(words, calls, place.home)
    done.judge((0, 1))
    left = [each for each in place.home.rglob("*") if each.is_file()]
    assert all(each.name in ("identity.pem", "secret") for each in left), left
    assert all(each.stat().st_size for each in left), left
    return done


def _dissects(place: Place, calls: Calls) -> Done:
    capture = place.home.parent / "capture.pcap"
    write(capture, [frame(golden.packet, golden.flow) for golden in GOLDEN])
    return _runs(["dissect", "--verbose", str(capture)], place, calls)


def _installs(place: Place, calls: Calls) -> Done:
    """The dissector for Wireshark: all of it or nothing."""
    done = run(["dissect", "--install"], calls, place.home)
    done.judge((0, 1))
    left = [each for each in place.home.rglob("*") if each.is_file()]
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


def _makes_a_secret(place: Place, calls: Calls) -> Done:
    return _runs(["key", "--secret", str(place.home / "secret")], place, calls)


def _tests(place: Place, calls: Calls) -> Done:
    """A performance test."""
    server = [*MRC, "perf", "--server", "--port", "0"]
    with subprocess.Popen(server, stderr=subprocess.PIPE, text=True, stdout=-1) as process:
        assert process.stderr is not None
        port = process.stderr.readline().split("TCP port ")[1].partition(",")[0]
        words = ["perf", f"127.0.0.1:{port}", "-n", "1M", "--json"]
        done = run(words, calls, place.home)
        process.terminate()
        process.communicate(timeout=PATIENCE)
    done.judge((0, 1, 3))
    return done


def _looks(place: Place, calls: Calls) -> Done:
    with receiving("--output", place.inbox) as (receiver, where):
        done = run(["paths", where], calls, place.home)
        receiver.terminate()
    done.judge((0, 1, 3))
    return done


Row = Callable[[Place, Calls], Done]
ROWS: dict[str, Row] = {
    "send": _sends,
    "recv": _receives,
    "paths": _looks,
    "perf": _tests,
    "secret": _makes_a_secret,
    "key": partial(_runs, ["key"]),
    "top": partial(_runs, ["top", "--local", "--once", "-i", "0.01"]),
    "doctor": partial(_runs, ["doctor"]),
    "schema": partial(_runs, ["schema", "perf"]),
    "sim": partial(_runs, ["sim", "list"]),
    "plan": partial(_runs, ["testbed", "plan"]),
    "run": partial(_runs, ["run", "--libdir"]),
    "profiles": partial(_runs, ["agent", "profiles"]),
    "agent": partial(_runs, ["agent", "--idle", "0.05", "--insecure", "--port", "0"]),
    "serve": _serves,
    "dissect": _dissects,
    "install": _installs,
    "completion": partial(_runs, ["completion", "bash"]),
    "up": partial(_in_bed, _BED),
    "exec": partial(_in_bed, ["testbed", "exec", "h0", "--", "true"], up=True),
    "demo": partial(_in_bed, _DEMO),
}
