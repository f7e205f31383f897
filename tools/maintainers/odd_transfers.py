# SPDX-License-Identifier: Apache-2.0
"""Transfers of odd files between odd hosts, which the soak draws. Each has its own mrc recv."""

from __future__ import annotations

import filecmp
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mrc.linux import netns
from mrc.testbed.bed import Testbed
from mrc.transfer.limits import is_temporary

PATIENT = ("--wait", "30", "--timeout", "60")  # of clients: the machine may be busy
END_LIMIT_S = 120  # time limit of every client, also after faults
STOP_S = 2  # running time in which SIGTERM and SIGINT end mrc, whatever it stores
LOST_S = 60  # for an end to notice that nothing comes any more
# Without them, root too is refused what the mode of a file forbids.
AS_USER = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
WITH_SHM = 'mount --bind "$0" /dev/shm && exec "$@"'  # semaphores that remain are found there
STREAM = random.Random(1).randbytes(24 << 20)


@dataclass(slots=True)
class Run:
    """The soak that an odd transfer belongs to: its test bed, its log, and the findings."""

    bed: Testbed
    folder: Path
    random: random.Random
    began: float = field(default_factory=time.monotonic)
    findings: list[str] = field(default_factory=list)
    number: int = 0
    moved: int = 0

    def say(self, text: str) -> None:
        with (self.folder / "log").open("a") as file:
            file.write(f"{time.monotonic() - self.began:8.2f} {text}\n")

    def find(self, text: str) -> None:
        self.say(f"FOUND {text}")
        self.findings.append(text)
        print(f"soak: found: {text}", file=sys.stderr, flush=True)

    def started(
        self, argv: Sequence[str], environment: Mapping[str, str], out: Path, err: Path
    ) -> subprocess.Popen[bytes]:
        """A process that writes into these files, which may be one."""
        with out.open("ab") as stdout, err.open("ab") as stderr:
            return subprocess.Popen(argv, env={**environment, "MRC_SOAK": str(self.folder)},
                                    stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                                    start_new_session=True)  # fmt: skip


@dataclass(slots=True)
class Mrc:
    """One end of an odd transfer."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def has_ended(self) -> bool:
        """Leaves the zombie, which knows the time that it ran."""
        if self.process.returncode is not None:
            return True
        options = os.WEXITED | os.WNOWAIT | os.WNOHANG
        return os.waitid(os.P_PID, self.process.pid, options) is not None

    def ran_s(self) -> float:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def result(self) -> Any:
        """Lines before the last one are of connections that were lost."""
        return json.loads(self.out.read_text().splitlines()[-1])

    def says(self, text: str) -> bool:
        return text in self.err.read_text(errors="replace")


class Tree:
    """A folder `top` with odd contents. Names are bytes, relative to it."""

    def __init__(self, folder: Path, drawn: random.Random) -> None:
        self.top = os.fsencode(folder / "top")
        self.random = drawn
        self.bad: set[bytes] = set()  # these, and all below them, may be left out
        os.mkdir(self.top)

    def path(self, name: bytes) -> bytes:
        return os.path.join(self.top, name)

    def file(self, name: bytes, data: bytes = b"", *, bad: bool = False, mode: int = 0) -> None:
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
        os.chmod(path, mode or self.random.choice([0o600, 0o644, 0o755, 0o444]))
        os.utime(path, ns=(0, self.random.randrange(1 << 60)))
        if bad:
            self.bad.add(name)

    def link(self, name: bytes, target: bytes, *, bad: bool = False) -> None:
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        os.symlink(target, self.path(name))
        if bad:
            self.bad.add(name)

    def many(self, files: int, links: int, chains: int) -> Iterator[None]:
        """Records without bytes: each costs the receiver system calls."""
        for n in range(files):
            self.file(b"empty/%06d" % n)
            if not n % 100:
                yield
        for n in range(links):
            self.link(b"links/%06d" % n, self.random.choice([b"nowhere", b"../empty/000000"]))
            if not n % 100:
                yield
        for n in range(chains):
            self.file(b"chain%d/" % n + b"d/" * 58 + b"f")
            yield

    def odd(self, *, any_name: bool) -> None:
        """Names, modes, links and depths of which some cannot be sent, and some not stored."""
        for name in (b"\xff\xfe", b"\xe9" * 255, b"x" * 255, b" ", b"a\\b", b"%s", b"~", b"CON",
                     "\u00fc".encode() * 127, b"\xff" * 200 + b"/" + b"\xfe" * 200):  # fmt: skip
            if self.random.random() < 0.7:
                self.file(name, name)
        for name in (b".hidden", b"-rf", b"a\nb", b"\x1b[2J", b".git/a", b".git/b/c",
                     "\u202eb".encode(), b"c/\x7f"):  # fmt: skip
            if self.random.random() < 0.5:
                self.file(name, name, bad=not any_name)
                if name[:1] == b"." and not any_name:
                    self.bad.add(name.partition(b"/")[0])
        for name in (b".x.mrc-01234567", b"in/.y.mrc-89abcdef"):
            if self.random.random() < 0.3:
                self.file(name, name, bad=True)
        if self.random.random() < 0.5:
            self.file(b"forbidden", b"1", bad=True)
            os.chmod(self.path(b"forbidden"), 0)
        if self.random.random() < 0.5:
            self.file(b"closed/file", b"1")
            self.bad.add(b"closed")
            os.chmod(self.path(b"closed"), 0)
        if self.random.random() < 0.5:
            self.link(b"absolute", b"/etc/passwd", bad=True)
            self.link(b"out", b"../../x", bad=True)
        if self.random.random() < 0.3:
            self.file(b"D/" + b"d/" * 70 + b"f", b"1")  # deeper than mrc goes
            self.bad.add(b"D")
        if self.random.random() < 0.3:
            self._long()
        if self.random.random() < 0.3:
            os.mkfifo(self.path(b"fifo"))
            self.bad.add(b"fifo")
        for n in range(self.random.randrange(4)):
            size = self.random.choice([1, 4095, 1 << 20, 5 << 20, 17 << 20])
            self.file(b"large/%d" % n, STREAM[:size])

    def _long(self) -> None:
        """A path that no system call takes, made step by step."""
        self.bad.add(b"L")
        os.mkdir(self.path(b"L"))
        at = os.open(self.path(b"L"), os.O_RDONLY)
        for _ in range(21):
            os.close(os.open(b"f", os.O_WRONLY | os.O_CREAT, dir_fd=at))
            os.mkdir(b"l" * 200, dir_fd=at)
            below = os.open(b"l" * 200, os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = below
        os.close(at)

    def entries(self) -> Iterator[bytes]:
        """All entries that a path leads to, but what is too long for one."""
        for folder, folders, files in os.walk(self.top):
            inside = os.path.relpath(folder, self.top)
            if inside == b".":
                yield b"."
            for name in (*folders, *files):
                whole = os.path.normpath(os.path.join(inside, name))
                if whole.partition(b"/")[0] not in (b"L", b"D"):
                    yield whole
            folders[:] = [name for name in folders if name not in (b"L", b"D")]

    def compare(self, inbox: Path, failed: set[bytes], kept: AbstractSet[bytes]) -> int:
        """Returns the bytes that are the same. `kept`: what the receiver had before."""
        same, mask = 0, os.umask(0)
        os.umask(mask)
        for name in self.entries():
            ours, theirs = self.path(name), os.path.join(os.fsencode(inbox), b"top", name)
            whole = os.path.normpath(os.path.join(b"top", name))
            is_failed = any(whole == each or whole.startswith(each + b"/") for each in failed)
            may_fail = any(name == x or name.startswith(x + b"/") for x in self.bad)
            assert may_fail or not is_failed, f"{name!r} was left out"
            if name in kept or name == b"fifo":
                continue
            if not os.path.lexists(theirs):
                assert is_failed, f"{name!r} is missing, and no end says so"
                continue
            a, b = os.lstat(ours), os.lstat(theirs)
            if stat.S_ISLNK(a.st_mode):
                assert os.readlink(ours) == os.readlink(theirs), f"{name!r} leads elsewhere"
                continue
            same_mode = a.st_mode & ~mask == b.st_mode & ~mask
            assert same_mode, f"{name!r} has mode {b.st_mode:o}, not {a.st_mode:o}"
            assert is_failed or a.st_mtime_ns == b.st_mtime_ns, f"{name!r} has another time"
            if stat.S_ISREG(a.st_mode):
                assert filecmp.cmp(ours, theirs, shallow=False), f"{name!r} differs"
                same += a.st_size
        return same


class Odd:
    """A transfer with a mrc recv of its own, of a kind that real use broke. It runs step by step,
    beside the others; `close` ends it and checks what remains.
    """

    def __init__(self, run: Run, name: str, source: str, target: str, number: float) -> None:
        run.number += 1
        self.run = run
        self.name = name
        self.folder = run.folder / f"{run.number:05}-{name.replace(' ', '-')}"
        self.inbox = self.folder / "inbox"
        self.shm = self.folder / "shm"
        for path in (self.folder, self.inbox, self.shm):
            path.mkdir()
        self.random = random.Random(number)
        self.tree = Tree(self.folder, self.random)
        self.processes: list[Mrc] = []
        self.pair: list[str] = []  # namespaces of its own
        self.source, self.target, self.port = source, target, 5000 + run.number % 10000
        self.address = target
        self.keeps = False  # parts of files and marks of folders, for a later transfer
        self.steps = getattr(self, ODD[name])()
        run.say(f"{name}: {source} to {target}: {self.folder}")

    def has_ended(self) -> bool:
        try:
            next(self.steps)
        except StopIteration:
            pass
        except (AssertionError, OSError, subprocess.CalledProcessError, ValueError) as error:
            self.run.find(f"{self.name}: {error}: {self.folder}")
            self.close()
            return True
        else:
            return False
        before = len(self.run.findings)
        self.close()
        if len(self.run.findings) == before:
            shutil.rmtree(self.folder)
        return True

    def close(self) -> None:
        """Ends what runs, and reports what remains although it should have ended."""
        ended = all(each.has_ended() for each in self.processes)
        for each in self.processes:
            each.process.kill()
            each.process.wait()
        for name in self.pair:
            netns.remove(name)
        self.pair.clear()
        if not ended:
            return
        for each in self.processes:
            if "Traceback" in (text := each.err.read_text(errors="replace")) or "assert" in text:
                self.run.find(f"{self.name} broke: {each.err}")
        if pids := marked(self.folder, "MRC_SOAK_ODD"):
            self.run.find(f"{self.name}: processes remain: {pids}")
        if left := os.listdir(self.shm):
            self.run.find(f"{self.name}: semaphores remain: {left}: {self.folder}")

    # ---- steps -----------------------------------------------------------------------------------

    def until(self, condition: Callable[[], object], limit_s: float, what: str) -> Iterator[None]:
        limit = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() <= limit, f"{what} not within {limit_s:g} s"
            yield

    def start(self, host: str, *words: str | Path) -> Mrc:
        number = len(self.processes)
        out, err = self.folder / f"{number}-{words[0]}.json", self.folder / f"{number}-{words[0]}"
        command = ["sh", "-c", WITH_SHM, str(self.shm), *AS_USER, sys.executable, "-m", "mrc"]
        command += map(str, words)
        environment = dict(os.environ)
        if self.pair:
            argv = ["ip", "netns", "exec", host, *command]
        else:
            argv, environment = self.run.bed.host_command(host, command)
        environment |= {"MRC_SOAK_ODD": str(self.folder)}
        self.processes.append(Mrc(self.run.started(argv, environment, out, err), out, err))
        return self.processes[-1]

    def recv(self, *options: str) -> Mrc:
        return self.start(self.target, "recv", "--insecure", "--once", "--json", "--port",
                          str(self.port), "--output", self.inbox, *options)  # fmt: skip

    def send(self, *options: str) -> Mrc:
        return self.start(self.source, "send", "--insecure", "--json", "--links", *options,
                          *PATIENT, os.fsdecode(self.tree.top),
                          f"{self.address}:{self.port}")  # fmt: skip

    def ended(self, *ends: Mrc) -> Iterator[None]:
        yield from self.until(lambda: all(each.has_ended() for each in ends), END_LIMIT_S,
                              "the end")  # fmt: skip

    def judge(self, sender: Mrc, receiver: Mrc, kept: AbstractSet[bytes] = frozenset()) -> Any:
        """Checks that both ends say the same, and that it is true; returns the receiver's."""
        code, said = self.code_of(sender, receiver), []
        results = [each.result() for each in (sender, receiver)]
        for result in results:
            names = {os.fsencode(each["name"]) for each in result["failed"]}
            # A message shortens a name that no path may have.
            said.append({b"top/L" if each.startswith(b"top/L/") else each for each in names})
            count = result["failed_count"]
            assert count == len(result["failed"]), "failed_count differs from failed"
        assert said[0] == said[1], f"only one end names {min(said[0] ^ said[1])!r}"
        assert (code == 6) == bool(said[0]), f"exit code {code} with {len(said[0])} failed files"
        self.run.moved += self.tree.compare(self.inbox, said[0], kept)
        files = [os.fsencode(each["name"]) for each in results[1]["files"]]
        assert len(files) == len(set(files)), "the receiver names a file twice"
        lacks = {
            each
            for name in self.tree.entries()
            if stat.S_ISREG(os.lstat(self.tree.path(name)).st_mode)
            and (each := b"top/" + name) not in said[0]
            and not any(each.startswith(failed + b"/") for failed in said[0])
        } - set(files)
        what = "stored files are not in the result of mrc recv"
        assert not lacks, f"{len(lacks)} {what}: {min(lacks)!r}"
        self.check_left()
        return results[1]

    def code_of(self, sender: Mrc, receiver: Mrc) -> int:
        """The exit code of both: all was copied, or some files were left out."""
        codes = sender.process.wait(), receiver.process.wait()
        assert codes in ((0, 0), (6, 6)), f"exit codes {codes}: {last_line(sender.err)}"
        return codes[0]

    def check_left(self) -> None:
        left = [name for name in os.listdir(self.inbox) if is_temporary(name)]
        assert self.keeps or not left, f"temporary files remain: {left}"

    # ---- kinds -----------------------------------------------------------------------------------

    def pack(self) -> Iterator[None]:
        """Odd records; some the sender cannot read, some the receiver refuses."""
        any_name = self.random.random() < 0.3
        files, links = self.random.choice([0, 10, 1000]), self.random.choice([0, 10, 500])
        yield from self.tree.many(files, links, self.random.choice([0, 1, 20]))
        self.tree.odd(any_name=any_name)
        yield
        kept: set[bytes] = set()
        if self.random.random() < 0.5:  # in the way of a file, and a folder that takes none
            (self.inbox / "top" / "shut").mkdir(parents=True)
            (self.inbox / "top" / "taken").write_bytes(b"theirs")
            self.tree.file(b"taken", b"ours", bad=True)
            self.tree.file(b"shut/file", b"1", bad=True)
            (self.inbox / "top" / "shut").chmod(0o500)
            kept, self.keeps = {b".", b"taken", b"shut"}, True
        options = ["--any-name"] * any_name + ["--fsync"] * (self.random.random() < 0.2)
        receiver, sender = self.recv(*options), self.send()
        yield from self.ended(sender, receiver)
        self.judge(sender, receiver, kept)

    def stop(self) -> Iterator[None]:
        """A signal while the receiver stores. It ends at a record, and the same command goes on."""
        counts = self.random.choice([(3000, 0, 0), (0, 3000, 0), (20, 0, 80)])
        yield from self.tree.many(*counts)
        receiver, sender = self.recv("--idle", "10"), self.send()
        pause = self.random.random() * 0.4
        victim = self.random.choice([sender, receiver, receiver])
        number = self.random.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
        top = self.inbox / "top"
        yield from self.until(lambda: top.exists() or sender.has_ended(), END_LIMIT_S, "a file")
        began = time.monotonic()
        while time.monotonic() < began + pause:
            yield
        killed = not victim.has_ended()
        if killed:
            self.run.say(f"{self.name}: {number.name} to pid {victim.process.pid}")
            ran, at = victim.ran_s(), time.monotonic()
            victim.process.send_signal(number)
            yield from self.until(victim.has_ended, 30, f"an end after {number.name}")
            late = time.monotonic() - at, victim.ran_s() - ran
            told = f"{number.name} took {late[0]:.1f} s, {late[1]:.1f} s of it ran"
            assert min(late) <= STOP_S, told
        if killed and victim is receiver and number == signal.SIGKILL:
            receiver = self.recv()  # to which the sender connects, if it was not done
            yield from self.until(sender.has_ended, END_LIMIT_S, "an end of the sender")
            went_on = sender.process.wait() == 0
            assert went_on, f"the sender did not go on: {last_line(sender.err)}"
            if not receiver.has_ended():
                receiver.process.terminate()
        yield from self.ended(sender, receiver)
        codes = sender.process.wait(), receiver.process.wait()
        allowed = {0, 1, 3, 4, 130, 143, -signal.SIGKILL, -signal.SIGTERM}
        assert set(codes) <= allowed, f"exit codes {codes}"
        receiver, sender = self.recv(), self.send()
        yield from self.ended(sender, receiver)
        self.judge(sender, receiver)

    def reconnect(self) -> Iterator[None]:
        """All paths are lost and come back while a folder with refused files is sent."""
        self.own_links(2)
        for n in range(200):
            self.tree.file(b"f%03d" % n, STREAM[n << 16 : n + 1 << 16])
        for name in (b"-refused", b"f100/.refused", b"taken"):
            self.tree.file(name.replace(b"f100/", b"g/"), b"ours", bad=True)
        (self.inbox / "top").mkdir()
        (self.inbox / "top" / "taken").write_bytes(b"theirs")
        yield
        receiver, sender = self.recv(), self.send("--rate", "25M")
        inbox = self.inbox / "top"
        count = self.random.randrange(2, 150)
        yield from self.until(lambda: len(os.listdir(inbox)) > count or sender.has_ended(),
                              END_LIMIT_S, f"{count} files")  # fmt: skip
        lost = not sender.has_ended()
        cut = self.random.choice(["silent", "down"])
        self.run.say(f"{self.name}: {cut} after {count} files")
        self.cut(cut)
        yield from self.until(lambda: sender.says("connection is lost") or sender.has_ended(),
                              LOST_S, "a lost connection")  # fmt: skip
        self.cut(cut, again=True)
        yield from self.ended(sender, receiver)
        result = self.judge(sender, receiver, {b".", b"taken"})
        assert result["failed_count"] == 3, f"{result['failed_count']} failed files, not 3"
        assert not lost or sender.says("connected again"), "the connection was not lost"

    def changing(self) -> Iterator[None]:
        """Files that grow, shrink and are touched. What only grows or is touched is copied."""
        sizes = {}
        for n in range(6):
            sizes[n] = [self.random.choice([0, 10_000, 1 << 20, 17 << 20])]
            self.tree.file(b"%d" % n, STREAM[: sizes[n][0]], mode=0o644)
        yield
        receiver, sender = self.recv(), self.send("--rate", "100M")
        shrunk: set[int] = set()
        while not sender.has_ended():
            n = self.random.randrange(6)
            path, size = self.tree.path(b"%d" % n), sizes[n][-1]
            how = self.random.random()
            if how < 0.3:
                more = min(self.random.randrange(1, 1 << 17), len(STREAM) - size)
                with open(path, "ab") as file:
                    file.write(STREAM[size : size + more])
                sizes[n].append(size + more)
            elif how < 0.6:
                os.utime(path)
            elif how < 0.65 and size:
                sizes[n].append(self.random.randrange(size))
                os.truncate(path, sizes[n][-1])
                shrunk.add(n)
            yield
        yield from self.ended(sender, receiver)
        code, failed = self.code_of(sender, receiver), sender.result()["failed"]
        names = {each["name"] for each in failed}
        right = (code == 6) == bool(names) and names <= {f"top/{n}" for n in shrunk}
        assert right, f"exit code {code}: {names} were left out"
        for n in (n for n in range(6) if f"top/{n}" not in names):
            got = (self.inbox / "top" / str(n)).read_bytes()
            right = min(sizes[n]) <= len(got) <= max(sizes[n]) and got == STREAM[: len(got)]
            assert right, f"{n} has {len(got)} bytes that it never had"
            self.run.moved += len(got)
        self.keeps = bool(failed)  # the part of a file that shrank is kept: it may grow again
        self.check_left()

    def interfaces(self) -> Iterator[None]:
        """An interface that carries nothing is left out."""
        self.own_links(2)
        mtu = str(self.random.choice([68, self.random.randrange(100, 321)]))
        ends = self.random.choice([self.pair[:1], self.pair[1:], self.pair])
        how = self.random.choice(["second", "unrelated", "third"])
        for n, namespace in enumerate(ends):
            if how == "second":
                ip("-n", namespace, "link", "set", "p2", "mtu", mtu)
            elif how == "unrelated":
                ip("-n", namespace, "link", "add", "odd0", "type", "veth", "peer", "name", "odd1")
                for name in ("odd0", "odd1"):
                    ip("-n", namespace, "link", "set", name, "mtu", mtu, "up")
                ip("-n", namespace, "addr", "add", f"10.99.{n}.1/24", "dev", "odd0")
        if how == "third":
            self.add_link(3, mtu)
        self.run.say(f"{self.name}: {how} interface with MTU {mtu} in {ends}")
        self.tree.file(b"file", STREAM[: 4 << 20])
        yield
        receiver, sender = self.recv(), self.send()
        yield from self.ended(sender, receiver)
        self.judge(sender, receiver)

    # ---- hosts of its own ------------------------------------------------------------------------

    def own_links(self, count: int) -> None:
        """Two plain hosts with links p1, p2, ... and addresses 10.77.N.1 and 10.77.N.2."""
        for n in range(2):
            name = f"mrc-{self.run.bed.name}-odd{self.run.number}-{n}"
            netns.create(name)
            self.pair.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        self.source, self.target = self.pair
        self.address = "10.77.1.2"
        for n in range(1, count + 1):
            self.add_link(n, "1500")

    def add_link(self, n: int, mtu: str) -> None:
        a, b = self.pair
        ip("link", "add", f"p{n}", "netns", a, "mtu", mtu, "type", "veth", "peer", "name", f"p{n}",
           "netns", b, "mtu", mtu)  # fmt: skip
        for end, namespace in enumerate(self.pair, 1):
            ip("-n", namespace, "link", "set", f"p{n}", "up")
            ip("-n", namespace, "addr", "add", f"10.77.{n}.{end}/24", "dev", f"p{n}")

    def cut(self, how: str, *, again: bool = False) -> None:
        """Between both hosts nothing passes any more, or again."""
        if how == "down":
            for n in (1, 2):
                ip("-n", self.target, "link", "set", f"p{n}", "up" if again else "down")
            return
        hook = "type filter hook input priority 0; policy drop;"
        rules = "delete table inet cut" if again else f"table inet cut {{ chain in {{ {hook} }}; }}"
        subprocess.run(["ip", "netns", "exec", self.target, "nft", rules], check=True)


ODD = {
    "odd pack": "pack", "signal": "stop", "reconnect": "reconnect", "changing": "changing",
    "odd interface": "interfaces",
}  # fmt: skip


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def last_line(path: Path) -> str:
    return (path.read_text(errors="replace").strip().splitlines() or ["no output"])[-1][:300]


def marked(folder: Path, variable: str = "MRC_SOAK") -> list[int]:
    """Processes that this run, or an odd transfer, or their processes started."""
    found = []
    sign = f"{variable}={folder}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if sign in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            pass  # the process ended meanwhile
    return found
