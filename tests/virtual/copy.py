# SPDX-License-Identifier: Apache-2.0
"""`mrc send` and `mrc recv` in virtual time: a tree of files, interrupted again and again.

After each attempt the auditor compares both ends. The last attempt meets no fault, so it must
finish what the others have begun.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from mrc.errors import ConnectTimeoutError
from virtual import disk
from virtual.connect import stalls
from virtual.host import Host
from virtual.world import Audit, Command, World, start_command, use_commands

_MIB = 1 << 20
_DAY = 1_600_000_000
_ATTEMPTS = 3  # with faults
_NO_POWER = "receiver without power"
_BOUND_SECONDS = 400  # in which an attempt ends, whatever happens


@dataclass
class Scenario:
    """What a seed draws."""

    planes: int
    bits_per_second: float
    delay_ms: float
    loss: float
    stalls: str
    sizes: list[int]
    faults: list[tuple[float, str]] = field(default_factory=list)
    """for each attempt but the last: when, and what"""
    options: str = ""
    """of mrc send"""
    overwrites: bool = False
    """mrc recv --overwrite, and files whose bytes change between the attempts"""
    syncs: bool = False
    """mrc recv --fsync"""

    @classmethod
    def drawn(cls, rng: Random) -> Scenario:
        """A scenario whose transfer takes a second or a few of virtual time."""
        sizes = [rng.choice((0, 1, rng.randrange(5000), rng.randrange(300_000)))
                 for _ in range(rng.randrange(1, 12))]  # fmt: skip
        if rng.random() < 0.4:
            sizes.append(rng.randrange(16 * _MIB, 20 * _MIB))
        made = cls(
            rng.choice((1, 2, 2)), 10 ** rng.uniform(7.3, 8.7), 10 ** rng.uniform(-1.5, 1.5),
            rng.choice((0, 0, 0.001, 0.01)), rng.choice(("idle", "idle", "busy")), sizes,
        )  # fmt: skip
        expected = sum(sizes) * 8 / (made.bits_per_second * made.planes) + made.delay_ms / 50
        for _ in range(rng.randrange(_ATTEMPTS + 1)):
            made.faults.append((rng.uniform(0, 1.2) * expected, rng.choice(list(FAULTS))))
        made.options = rng.choice(("", "", "--links", "--update", "--exclude *.bak --rate 300mbit"))
        made.overwrites = rng.random() < 0.3
        made.syncs = rng.random() < 0.4
        return made


def _plane_down(world: World, a: Host, b: Host, rng: Random) -> None:
    """One plane carries nothing for a while."""
    links = world.plane(a, b, rng.randrange(len(a.interfaces)) + 1)
    world.cut([path for link in links for path in link.paths], rng.uniform(0.1, 30))


def _receiver_off(world: World, a: Host, b: Host, rng: Random) -> None:
    """It loses its power soon after its disk has changed, or in half a minute."""
    unsynced, soon_ns = b.disk.unsynced, rng.choice((0, 10**6, 10**8, 10**9))

    def off() -> None:
        if unsynced.on_change is not None:
            unsynced.on_change = None
            b.lose_power(rng)

    unsynced.on_change = lambda: world.agenda.after(soon_ns, off)
    world.agenda.after(30e9, off)


def _sleep_ns(rng: Random) -> int:
    return int(rng.choice((1, 10, 60)) * 1e9)


def _disk_fails(error: int) -> Callable[[World, Host, Host, Random], None]:
    def act(world: World, a: Host, b: Host, rng: Random) -> None:
        b.disk.error = error
        world.agenda.after(rng.uniform(0.1, 60) * 1e9, lambda: setattr(b.disk, "error", 0))

    return act


FAULTS: dict[str, Callable[[World, Host, Host, Random], None]] = {
    "plane down": _plane_down,
    "all planes down": lambda world, a, b, rng: world.cut(
        world.paths(a, b), rng.choice((0.3, 3, 30, 100))
    ),
    "TCP silent": lambda world, a, b, rng: world.cut(
        world.paths(a, b), rng.choice((1, 30)), what="tcp"
    ),
    "sender killed": lambda world, a, b, rng: a.kill(),
    "receiver killed": lambda world, a, b, rng: b.kill(),
    "sender without power": lambda world, a, b, rng: a.lose_power(rng),
    _NO_POWER: _receiver_off,
    "sender sleeps": lambda world, a, b, rng: a.stall(_sleep_ns(rng)),
    "receiver sleeps": lambda world, a, b, rng: b.stall(_sleep_ns(rng)),
    "sender interrupted": lambda world, a, b, rng: a.interrupt(),
    "receiver interrupted": lambda world, a, b, rng: b.interrupt(),
    "disk full": _disk_fails(disk.FULL),
    "disk broken": _disk_fails(disk.BROKEN),
}


def run(world: World, audit: Audit) -> None:
    """Attempts with faults, and one without."""
    scenario = Scenario.drawn(world.rng)
    audit.describe(scenario)
    a, b = (world.host(name, scenario.planes, mtu=9000) for name in "ab")
    world.join(
        a, b, bits_per_second=scenario.bits_per_second, delay_ms=scenario.delay_ms,
        loss=scenario.loss,
    )  # fmt: skip
    use_commands(world, "send", "recv")
    tree = a.folder / "tree"
    _make(tree, scenario, world.rng)
    versions = _Versions(tree)
    inbox = b.folder / "inbox"
    recv = f"recv --output {inbox} --insecure --quiet {'--overwrite' * scenario.overwrites}"
    recv += " --fsync" * scenario.syncs
    receiving: Command | None = None
    for attempt in range(len(scenario.faults) + 1):
        for host in (a, b):
            host.stall_of = stalls(scenario.stalls, Random(world.rng.random()))
        if receiving is None or receiving.code is not None or not b.alive:
            receiving = start_command(b, recv)
            world.run(2)
        line = f"send {scenario.options} {tree} b --insecure --quiet --timeout 20"
        sending = start_command(a, line)
        a.interrupt, b.interrupt = sending.interrupt, receiving.interrupt
        fault = ""
        if attempt < len(scenario.faults):
            when, fault = scenario.faults[attempt]
            rng = Random(world.rng.random())
            world.agenda.after(when * 1e9, partial(FAULTS[fault], world, a, b, rng))
        ended = world.run_until(sending.task, _BOUND_SECONDS)
        audit.result(f"{world.now:.0f} s, {fault or 'no fault'}: {sending}")
        audit.check(not sending.crashed, sending.crashed)
        audit.check(ended or not a.alive, f"mrc send has not ended after {_BOUND_SECONDS} s")
        if not ended and a.alive:
            return
        if fault or not scenario.syncs:
            world.run(120)
        else:
            b.lose_power(world.rng)  # at once: what mrc send has said must be true
        _judge(scenario, fault, sending, b, versions, audit)
        if scenario.overwrites and fault:
            versions.change(world.rng)
        if not scenario.syncs:
            b.disk.unsynced.all_synced()  # two minutes are enough for every kernel
    if b.alive and receiving is not None:
        _end(world, receiving, (a, b), audit)
    audit.nothing_left(world)


def _end(world: World, receiving: Command, hosts: tuple[Host, Host], audit: Audit) -> None:
    """Ctrl-C ends mrc recv."""
    receiving.interrupt()
    for host in hosts:
        host.stall_of = lambda: 0
    audit.check(world.run_until(receiving.task, 60), "mrc recv does not end")
    audit.check(not receiving.crashed, receiving.crashed)
    audit.check(receiving.code == 130, f"interrupted, but: {receiving}")


def _judge(
    scenario: Scenario, fault: str, sending: Command, b: Host, versions: _Versions, audit: Audit
) -> None:
    """What mrc send has said, and what is in the inbox."""
    judge_cause(fault, sending, audit)
    lost = {path for path in b.lost if not path.name.startswith(".")}
    audit.check(not (scenario.syncs and lost), f"{lost} were not synced, but had their names")
    unsure = not scenario.syncs and b.outages > 0
    complete = sending.code == 0 and (scenario.syncs or fault != _NO_POWER)
    versions.compare(b.folder / "inbox" / "tree", lost, audit, complete=complete, unsure=unsure)
    if not fault:
        refused = sending.code == 6 and lost  # some exist, with other bytes
        audit.check(sending.code == 0 or refused, f"nothing was wrong, but: {sending}")
        left = [each.name for each in (b.folder / "inbox").rglob(".*")]
        audit.check(sending.code != 0 or b.outages or not left, f"{left} are left in the folder")


# What must not be said for a fault: the evidence is against it.
_WRONG_CAUSES = {
    "receiver interrupted": ("UDP", "paths"),
    "receiver killed": ("UDP", "paths"),
    "disk full": ("UDP", "paths", "closing the connection"),
    "disk broken": ("UDP", "paths", "closing the connection"),
    "TCP silent": ("UDP", "paths", "closing the connection"),
    "receiver sleeps": ("UDP", "closing the connection"),
    "sender sleeps": ("UDP", "closing the connection"),
}


def judge_cause(fault: str, sending: Command, audit: Audit) -> None:
    """What the sender's user is told fits what happened."""
    for wrong in _WRONG_CAUSES.get(fault, ()):
        audit.check(wrong not in str(sending.error), f"{fault}, but: {sending}")
    if fault in ("sender sleeps", "receiver sleeps"):
        first = fault == "receiver sleeps" and isinstance(sending.error, ConnectTimeoutError)
        goes_on = sending.code == 0 or first  # --timeout is for the first connection
        audit.check(goes_on, f"{fault}, and the transfer does not go on: {sending}")


def _make(tree: Path, scenario: Scenario, rng: Random) -> None:
    """Files of these sizes in some folders, with modes and times of their own."""
    folders = [tree, tree / "one", tree / "one" / "two", tree / "empty"]
    for folder in folders:
        folder.mkdir()
    for number, size in enumerate(scenario.sizes):
        path = rng.choice(folders[:3]) / f"file{number}"
        path.write_bytes(rng.randbytes(size))
        path.chmod(rng.choice((0o644, 0o600, 0o755)))
        os.utime(path, (_DAY, _DAY + rng.randrange(10**6)))
    if "--links" in scenario.options:
        (tree / "one" / "link").symlink_to("two")
        (tree / "one" / "two" / "up").symlink_to("../../empty")
    if "--exclude" in scenario.options:
        (tree / "one" / "old.bak").write_bytes(b"not sent")
    for folder in reversed(folders):
        folder.chmod(rng.choice((0o755, 0o700, 0o750)))
        os.utime(folder, (_DAY, _DAY + rng.randrange(10**6)))


class _Versions:
    """What each file of the sender was at the start of every attempt."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._of = {
            path: [path.read_bytes()]
            for path in self._sent()
            if path.is_file() and not path.is_symlink()
        }

    def _sent(self) -> list[Path]:
        """All below the tree, and not beyond links, except what --exclude leaves out."""
        found = []
        for folder, folders, files in os.walk(self._tree):
            found += [
                Path(folder, name) for name in (*folders, *files) if not name.endswith(".bak")
            ]
        return sorted(found)

    def change(self, rng: Random) -> None:
        """One file gets other bytes, as many as before."""
        path = rng.choice(list(self._of))
        before = path.stat()
        path.write_bytes(rng.randbytes(before.st_size))
        os.utime(path, (_DAY, before.st_mtime + 1))
        self._of[path].append(path.read_bytes())

    def compare(
        self, copied: Path, lost: set[Path], audit: Audit, *, complete: bool, unsure: bool
    ) -> None:
        """What has its final name is what was sent; all is there when `mrc send` said so. Excepted
        are files that were not synced and have lost bytes and, if `unsure`, modes and times.
        """
        for path in self._sent():
            other = copied / path.relative_to(self._tree)
            if path.is_symlink():
                there = other.is_symlink() and other.readlink() == path.readlink()
                audit.check(there or not complete, f"{other.name} is not the link that was sent")
            elif not other.exists():
                audit.check(not complete, f"{other.name} is missing, but mrc send said 0")
            elif other not in lost:
                self._compare(path, other, audit, complete=complete, unsure=unsure)
        ours = {path.relative_to(self._tree) for path in self._sent()}
        theirs = (
            {each.relative_to(copied) for each in copied.rglob("*")} if copied.exists() else set()
        )
        extra = [str(each) for each in theirs - ours if not each.name.startswith(".")]
        audit.check(not extra, f"{extra} were never sent")

    def _compare(
        self, path: Path, other: Path, audit: Audit, *, complete: bool, unsure: bool
    ) -> None:
        if path.is_file():
            allowed = self._of[path][-1:] if complete else self._of[path]
            same = other.read_bytes() in allowed
            audit.check(same, f"{other.name} differs ({other.stat().st_size} bytes)")
        # A folder that existed keeps its own mode and date, and a new file in it renews the date.
        kept = path.is_dir() and any(len(each) > 1 for each in self._of.values())
        if complete and not kept and not unsure:
            ours, theirs = path.stat(), other.stat()
            audit.check(
                (ours.st_mode, int(ours.st_mtime)) == (theirs.st_mode, int(theirs.st_mtime)),
                f"{other.name}: mode {theirs.st_mode:o} instead of {ours.st_mode:o}, time"
                f" {theirs.st_mtime:.0f} instead of {ours.st_mtime:.0f}",
            )
