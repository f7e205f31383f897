# SPDX-License-Identifier: Apache-2.0
"""`mrc demo`: a file crosses a test bed of four planes, and one falls silent during the transfer.

`mrc recv` and `mrc send` run as separate processes inside two hosts of the test bed. The receiver
records the payload that it places in memory, in bins of a few milliseconds. At the end the demo
reads and compares both files, independently of mrc's own digest.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import filecmp
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from itertools import accumulate
from math import ceil
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from mrc.cli.arguments import add
from mrc.cli.output import (
    Exit,
    Output,
    UsageError,
    format_table,
)
from mrc.cli.runner import run_async
from mrc.errors import ArgumentError, MrcError, StateError
from mrc.linux import system
from mrc.observe import views
from mrc.results import Result, like
from mrc.tasks import cancelled, within
from mrc.testbed import rootless
from mrc.testbed.bed import Testbed
from mrc.testbed.child import Child
from mrc.testbed.faults import Fault
from mrc.testbed.plan import BURST_BYTES
from mrc.transfer.results import Transfer
from mrc.transfer.threads import in_thread
from mrc.units import counted, digits, parse_short_rate, parse_short_size, scaled

T = TypeVar("T")

SENDER, RECEIVER = "h0", "h1"
FAULTY_PLANE = 2
FAULT_SHARE = 0.5  # the plane falls silent when this share of the file has arrived
HEAL_SHARE = 0.85  # the plane is healed when this share of the file has arrived
SETTLE_SECONDS = 0.1  # left out of the goodputs: slow start, and recovery after the fault
WINDOW_SECONDS = 0.05  # goodput at a moment is the mean over a window of this width around it
BIN_SECONDS = 0.02
RECORDED_BIN = "5ms"  # --bins of the receiver
RECOVERED_SHARE = 0.95  # of the surviving capacity

# Bytes of a packet that a plane's shaper counts besides its payload: Ethernet, the outer and the
# inner IPv6 header, UDP, and MRC's BTH, METH, TSETH, RETH and ICRC.
WIRE_OVERHEAD_BYTES = 14 + 40 + 40 + 8 + 40
_BLOCK = 1 << 20
_PREFIX = "mrc-demo-"
_LEFT_SECONDS = 60  # a folder without a lock is younger only while its demo begins
_FIRST_BYTES = 1 << 14  # more bytes than the messages before the file


class DemoPlan(Struct, frozen=True):
    """The parameters of the demo and its test bed."""

    name: str
    rate_bps: int
    planes: int
    t1: int
    bytes: int
    seed: int
    keep: bool = False

    @property
    def timeout(self) -> float:
        """Time limit of the transfer in seconds: 60 s, plus 10 times the time over one plane."""
        return 60 + 10 * self.bytes * 8 / self.rate_bps


class DemoResult(Struct):
    """The measurements of the demo. Times are those of the monotonic clock, in seconds."""

    plan: DemoPlan
    timeline: Timeline
    sender: dict[str, Any]
    receiver: dict[str, Any]
    plane_bytes: list[dict[int, int]]  # sent per plane: at the fault, at the heal, at the end
    began: float
    failed: float  # just before the fault took effect
    silent: float  # after it had taken effect
    healed: float  # or the end, if the heal came later
    ended: float
    identical: bool

    def __post_init__(self) -> None:
        """Raises DemoError if goodput could not settle before the fault or during it."""
        self.healed = min(self.healed, self.ended)
        if min(self.failed - self.began, self.healed - self.silent) <= SETTLE_SECONDS:
            seconds = self.ended - self.began
            usual = max(self.plan.rate_bps * self.plan.planes // 8, 2 * self.plan.bytes)
            enough = 1 << (usual - 1).bit_length()  # at least a second, if the machine is idle
            raise DemoError(
                f"the file arrived in {digits(seconds, 2)} s, too soon to show a failure: "
                f"choose --size {enough >> 20}MiB or more"
            )

    @property
    def plane_capacity(self) -> float:
        """Payload bits per second that one plane can carry."""
        mtu = int(self.sender["path_mtu_bytes"])
        return self.plan.rate_bps * mtu / (mtu + WIRE_OVERHEAD_BYTES)

    @property
    def capacity(self) -> float:
        return self.plane_capacity * self.plan.planes

    @property
    def surviving_capacity(self) -> float:
        return self.plane_capacity * (self.plan.planes - 1)

    @property
    def before(self) -> TimeSpan:
        """The time of `goodput_before`."""
        return self._steady(self.began, self.failed, self.capacity)

    @property
    def after(self) -> TimeSpan:
        """The time of `goodput_after`."""
        return self._steady(self.silent, self.healed, self.surviving_capacity)

    def _steady(self, start: float, end: float, capacity: float) -> TimeSpan:
        """Begins where the least was waiting in queues and socket buffers: the planes have carried
        that earlier, but it would count as carried now.
        """
        settled = min(start + SETTLE_SECONDS, end)
        return TimeSpan(self.timeline.ahead(settled, (settled + end) / 2, capacity), end)

    @property
    def goodput_before(self) -> float:
        return self.timeline.goodput(self.before.start, self.before.end)

    @property
    def goodput_after(self) -> float:
        return self.timeline.goodput(self.after.start, self.after.end)

    def limit(self, planes: int, interval: TimeSpan) -> float:
        """Payload bits per second that planes can carry in an interval that begins with full
        buckets of their shapers.
        """
        buckets = planes * BURST_BYTES * 8 / interval.seconds if interval.seconds > 0 else 0.0
        return planes * self.plane_capacity + buckets * self.plane_capacity / self.plan.rate_bps

    @property
    def dips(self) -> list[TimeSpan]:
        """When goodput was below RECOVERED_SHARE of the surviving capacity during the fault."""
        level = RECOVERED_SHARE * self.surviving_capacity
        end = self.healed - WINDOW_SECONDS / 2
        return self.timeline.below(self.failed, end, level, WINDOW_SECONDS)

    @property
    def recovery_seconds(self) -> float | None:
        """Time from the fault to the end of the dip that it caused; 0 without a dip, None if the
        dip lasted until the plane was healed.
        """
        dips = self.dips
        if not dips or dips[0].start > self.failed + SETTLE_SECONDS:
            return 0.0
        lasts = dips[0].end >= self.healed - WINDOW_SECONDS
        return None if lasts else dips[0].end - self.failed

    @property
    def below_seconds(self) -> float:
        return sum((dip.seconds for dip in self.dips), 0.0)

    def bins(self) -> list[Bin]:
        return self.timeline.bins(self.began, self.ended, BIN_SECONDS)

    def report(self) -> Demo:
        return like(
            Demo,
            self.plan,
            self,
            goodput_before_bits_per_second=self.goodput_before,
            goodput_after_bits_per_second=self.goodput_after,
            capacity_bits_per_second=self.capacity,
            surviving_capacity_bits_per_second=self.surviving_capacity,
            plane_capacity_bits_per_second=self.plane_capacity,
            wire_overhead_bytes=WIRE_OVERHEAD_BYTES,
            recovered_share=RECOVERED_SHARE,
            settle_seconds=SETTLE_SECONDS,
            window_seconds=WINDOW_SECONDS,
            bin_seconds=BIN_SECONDS,
            faulty_plane=FAULTY_PLANE,
            failed_after_seconds=self.failed - self.began,
            healed_after_seconds=self.healed - self.began,
            seconds=self.ended - self.began,
            sent_packets=self.sender["sent_packets"],
            retransmitted_packets=self.sender["retransmitted_packets"],
            host_rate_bits_per_second=self.plan.rate_bps,
            goodput=tuple(
                GoodputBin(seconds=each.start - self.began, bits_per_second=each.bits_per_second)
                for each in self.bins()
            ),
        )


async def run_demo(plan: DemoPlan, say: Callable[[str], None]) -> DemoResult:
    """Builds the test bed, runs the transfer, compares the files and removes the test bed.

    Calls `say` before each step. With `plan.keep` the test bed stays up.
    """
    with suppress(StateError):
        Testbed.existing(plan.name)
        # Somebody may use that test bed, and the demo would remove it at its end.
        raise DemoError(f"test bed {plan.name} is already up; choose another --name")
    bed = Testbed(plan.name, planes=plan.planes, t1=plan.t1, rate=str(plan.rate_bps))
    async with AsyncExitStack() as stack:
        source, inbox = stack.enter_context(scratch(_folder_for(2 * plan.bytes)))
        say(f"writing {plan.bytes} random bytes (seed {plan.seed}) to {source.parent}")
        await in_thread(write_random, source, plan.bytes, plan.seed)
        if not plan.keep:
            stack.push(bed.__exit__)  # not async: a second signal cannot interrupt it
        say(
            f"building test bed {plan.name}: {counted(plan.planes, 'plane')}, "
            f"{counted(plan.t1, 'T1')} each"
        )
        await in_thread(bed.up)
        if plan.keep:
            say(f"to remove the test bed later: mrc testbed down --name {plan.name}")
        try:
            async with within(plan.timeout):
                result = await _transfer(plan, bed, source, inbox, say)
        except TimeoutError:
            raise DemoError(f"the transfer did not end within {plan.timeout:.0f} s") from None
        say("comparing both files byte for byte")
        copied = inbox / source.name
        result.identical = await in_thread(filecmp.cmp, source, copied, False)
        return result


@contextmanager
def scratch(place: Path | None) -> Iterator[tuple[Path, Path]]:
    """The path of a file to send, and a folder to receive into, in a new folder below `place`, or
    below the default one. They are removed at the end, and by the next demo if this one is killed.
    """
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    source, inbox = folder / "demo.bin", folder / "inbox"
    try:
        with _locked(folder):
            for left in folder.parent.glob(f"{_PREFIX}*"):
                with suppress(OSError), _locked(left):
                    if time.time() - left.stat().st_mtime > _LEFT_SECONDS:
                        shutil.rmtree(left)
            inbox.mkdir()
            yield source, inbox
    finally:
        try:
            shutil.rmtree(folder)
        except OSError:  # perhaps no descriptor is free, but another process has its own
            pid = os.posix_spawn("/bin/rm", ("rm", "-rf", str(folder)), {})
            os.waitpid(pid, 0)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises OSError if another process has locked it. The lock ends with the process."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def _folder_for(size: int) -> Path | None:
    """/dev/shm if it has room, so that the disk does not limit the transfer; otherwise None, for
    the default folder. TMPDIR takes precedence.
    """
    memory = Path("/dev/shm")
    with suppress(OSError):
        if "TMPDIR" in os.environ:
            return None
        if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2 * size:
            return memory
    return None


async def _transfer(
    plan: DemoPlan, bed: Testbed, source: Path, inbox: Path, say: Callable[[str], None]
) -> DemoResult:
    receiver, sender = DemoProcess(f"mrc recv on {RECEIVER}"), DemoProcess(f"mrc send on {SENDER}")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(receiver.stop)
        options = ["--once", "--bins", RECORDED_BIN, "--output", str(inbox)]
        await receiver.start(bed, RECEIVER, ["recv", *options])
        await _first(receiver.listening.wait(), receiver)
        say(f"sending from {SENDER} to {RECEIVER}")
        stack.push_async_callback(sender.stop)
        await sender.start(bed, SENDER, ["send", str(source), RECEIVER])
        work = _fail_and_heal(plan, bed, receiver, sender, say)
        (failed, silent, healed), plane_bytes = await _first(work, sender, receiver)
        sent, received = await sender.result(), await receiver.result()
    bins = received["bins"]
    timeline = Timeline(bins["start_monotonic_ns"] / 1e9, bins["width_ns"] / 1e9, bins["bytes"])
    began, ended = timeline.last_below(_FIRST_BYTES), timeline.reached(plan.bytes)
    assert ended is not None, "the receiver recorded all of its transfer"
    return DemoResult(
        plan=plan,
        timeline=timeline,
        sender=sent,
        receiver=received,
        plane_bytes=[*plane_bytes, await sender.plane_bytes()],
        began=began,
        failed=failed,
        silent=silent,
        healed=healed,
        ended=ended,
        identical=False,
    )


async def _first(work: Coroutine[Any, Any, T], *children: DemoProcess) -> T:
    """Returns the result of `work`; raises the error of a child that fails before."""
    main = asyncio.ensure_future(work)
    tasks: list[asyncio.Task[Any]] = [main]
    tasks += [asyncio.ensure_future(child.result()) for child in children]
    try:
        while not main.done():
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            tasks = [task for task in tasks if task is main or task not in done]
        return main.result()
    finally:
        await cancelled(*tasks)


async def _fail_and_heal(
    plan: DemoPlan,
    bed: Testbed,
    receiver: DemoProcess,
    sender: DemoProcess,
    say: Callable[[str], None],
) -> tuple[tuple[float, float, float], list[dict[int, int]]]:
    """Injects and heals the fault. Returns the times just before and after it takes effect and just
    before it ends, and the bytes sent on each plane until its begin and its end.
    """
    target = bed.shape.target(f"plane:{FAULTY_PLANE}")
    changed: list[float] = []

    def prepared() -> None:
        changed.append(time.monotonic())

    await receiver.until(int(plan.bytes * FAULT_SHARE))
    at_fault = await sender.plane_bytes()
    # The fault takes effect between these two times, some milliseconds apart. Its preparation takes
    # longer, most of all on a busy machine.
    await in_thread(bed.set_faults, {target: Fault()}, prepared)
    silent = time.monotonic()
    say(f"plane {FAULTY_PLANE} is silent")
    await receiver.until(int(plan.bytes * HEAL_SHARE))
    at_heal = await sender.plane_bytes()
    await in_thread(bed.heal, str(target), prepared)
    say(f"plane {FAULTY_PLANE} is healed")
    failed, healed = changed
    return (failed, silent, healed), [at_fault, at_heal]


def write_random(path: Path, count: int, seed: int) -> None:
    """Fills a new file with `count` random bytes from `seed`."""
    generator = random.Random(seed)
    with path.open("wb") as file:
        for start in range(0, count, _BLOCK):
            file.write(generator.randbytes(min(_BLOCK, count - start)))


# ---- The processes -------------------------------------------------------------------------------


LISTENING = "listening on"
LOOK_SECONDS = 0.02  # between two queries of its counters
STOP_SECONDS = 3.0


class DemoError(MrcError):
    """The demo failed before its end."""


class DemoProcess:
    """One mrc process inside a host: its counters, its result and its errors."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.listening = asyncio.Event()
        self._socket: Path | None = None
        self._child: Child | None = None

    async def start(self, bed: Testbed, host: str, arguments: Sequence[str]) -> None:
        command = [sys.executable, "-P", "-m", "mrc", *arguments, "--json"]
        argv, environment = bed.host_command(host, command)

        def on_note(line: str) -> None:
            if LISTENING in line:
                self.listening.set()

        # In a session of its own: ^C reaches only the demo, which ends it.
        self._child = await Child.start(argv, environment, on_note=on_note)

    async def look(self) -> dict[str, Any] | None:
        """Its counters now, as in `mrc top --local`; None if it has ended with success.

        Raises the error of `result` if it has failed.
        """
        assert self._child is not None
        while self._child.exit_code is None:
            try:
                self._socket = self._socket or next(iter(views.sockets_of(self._child.pid)), None)
                if self._socket is not None:
                    return await views.look(self._socket)
            except (OSError, MrcError):
                pass  # the process is ending, or has no socket yet: retry
            await asyncio.sleep(LOOK_SECONDS)
        await self.result()
        return None

    async def until(self, count: int) -> None:
        """Waits until it has received `count` payload bytes."""
        while True:
            seen = await self.look()
            if seen is None or seen["counters"].get("RX_BYTES", 0) >= count:
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def plane_bytes(self) -> dict[int, int]:
        """Payload that it has sent on each plane."""
        seen, sent = await self.look(), Counter[int]()
        for qp in seen["qps"] if seen is not None else ():
            sent.update({each["plane"]: each["sent_bytes"] for each in qp["planes"]})
        if not sent:  # its QPs are closed
            sent.update(
                {each["plane"]: each["sent_bytes"] for each in (await self.result())["planes"]}
            )
        return sent

    async def result(self) -> dict[str, Any]:
        """Waits for its end, and returns the JSON that it printed."""
        assert self._child is not None
        output = await self._child.output()
        if self._child.exit_code != 0:
            said = "; ".join(list(self._child.notes)[-3:]) or "no message"
            raise DemoError(f"{self.name} failed with exit code {self._child.exit_code}: {said}")
        result: dict[str, Any] = json.loads(output)
        return result

    async def stop(self) -> None:
        """Ends the process if it still runs, and waits for its end."""
        if self._child is not None:
            await self._child.end(STOP_SECONDS)


# ---- Goodput over time, computed from the bytes received in bins ---------------------------------


class Bin(Struct, frozen=True):
    """Mean goodput over [start, start + width)."""

    start: float
    width: float
    bits_per_second: float


class TimeSpan(Struct, frozen=True):
    """[start, end) in seconds."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


class Timeline:
    """Received bytes over time: linear within a bin, constant before and after all bins."""

    def __init__(self, start: float, width: float, bins: Sequence[int]) -> None:
        """`bins` are the bytes of each `width` seconds from `start` on."""
        self._start = start
        self._width = width
        # Total bytes at the start of each bin, and at the end of the last.
        self._totals = [0, *accumulate(bins)]

    def bytes_at(self, seconds: float) -> float:
        """Payload bytes that had arrived at this time."""
        bins = min(max((seconds - self._start) / self._width, 0.0), len(self._totals) - 1.0)
        whole = int(bins)
        before, after = self._totals[whole], self._totals[ceil(bins)]
        return before + (after - before) * (bins - whole)

    def reached(self, count: int) -> float | None:
        """The end of the bin in which the total reached `count` bytes; None if it never did."""
        index = bisect_left(self._totals, count)
        return self._start + index * self._width if index < len(self._totals) else None

    def last_below(self, count: int) -> float:
        """The start of the bin in which the total reached `count` bytes, or the end of the last."""
        return self._start + max(0, bisect_left(self._totals, count) - 1) * self._width

    def goodput(self, start: float, end: float) -> float:
        """Mean bits per second between two times; 0 if `end` is not after `start`."""
        if end <= start:
            return 0.0
        return (self.bytes_at(end) - self.bytes_at(start)) * 8 / (end - start)

    def ahead(self, start: float, end: float, bits_per_second: float) -> float:
        """The time between two times, in whole bins from `start` on, at which most bytes had
        arrived compared with a steady rate: then the least was waiting on the way.
        """
        steps = range(int((end - start) / self._width + 1e-9) + 1)
        times = [start + step * self._width for step in steps]
        return max(times, key=lambda at: self.bytes_at(at) * 8 - at * bits_per_second)

    def bins(self, start: float, end: float, width: float) -> list[Bin]:
        """Whole bins from `start` on; a remainder before `end` is left out."""
        count = int((end - start) / width + 1e-9)
        starts = (start + i * width for i in range(count))
        return [Bin(at, width, self.goodput(at, at + width)) for at in starts]

    def below(self, start: float, end: float, level: float, window: float) -> list[TimeSpan]:
        """The intervals in which goodput was below `level`, in order, to a tenth of `window`.

        Goodput at a moment is the mean over the `window` around it. In a much shorter window the
        bursts of a shaper would dominate.
        """
        step = window / 10
        intervals: list[TimeSpan] = []
        for i in range(int((end - start) / step + 1e-9)):
            at = start + i * step
            if self.goodput(at - window / 2, at + window / 2) >= level:
                continue
            if intervals and intervals[-1].end >= at - step / 2:
                intervals[-1] = TimeSpan(intervals[-1].start, at + step)
            else:
                intervals.append(TimeSpan(at, at + step))
        return intervals


# ---- What `mrc demo` prints as JSON --------------------------------------------------------------


class GoodputBin(Struct, frozen=True, kw_only=True):
    """Goodput at one time."""

    seconds: float
    """Begin of the bin, from the start of the transfer."""
    bits_per_second: float
    """Payload bits that arrived in the bin, divided by its width."""


class Demo(Result, frozen=True, kw_only=True):
    """A file crossed a test bed; one plane was silent for a while."""

    identical: bool
    """The bytes that arrived are those that were sent."""
    recovery_seconds: float | None
    """From the fault until goodput is back at `recovered_share`; 0: it never fell below; null: it
    stayed below.
    """
    below_seconds: float
    """Time that goodput was below `recovered_share`, during the fault."""
    goodput_before_bits_per_second: float
    """Goodput before the fault."""
    goodput_after_bits_per_second: float
    """Goodput during the fault, once it has settled."""
    capacity_bits_per_second: float
    """Payload that all planes can carry."""
    surviving_capacity_bits_per_second: float
    """Payload that all planes but one can carry."""
    plane_capacity_bits_per_second: float
    """Payload that one plane can carry."""
    wire_overhead_bytes: int
    """Bytes of each packet on a link beside its payload."""
    recovered_share: float
    """Part of the surviving capacity at which goodput counts as recovered."""
    settle_seconds: float
    """Time after start and fault that the goodputs leave out."""
    window_seconds: float
    """Window over which goodput is averaged."""
    bin_seconds: float
    """Width of the bins of `goodput`."""
    faulty_plane: int
    """The plane that fell silent."""
    failed_after_seconds: float
    """When the plane fell silent, from the start."""
    healed_after_seconds: float
    """When the plane was healed, or the transfer ended before that, from the start."""
    seconds: float
    """Duration of the transfer."""
    processor_share: float = 1.0
    """The part of the processors' time that programs got before or after; below 0.9 the machine was
    busy, and the figures are lower for it.
    """
    sent_packets: int
    """Data packets sent, retransmissions included."""
    retransmitted_packets: int
    """Packets sent again because they were declared lost."""
    name: str
    """Name of the test bed."""
    host_rate_bits_per_second: int
    """Rate of a host's link in each plane."""
    planes: int
    """Number of planes."""
    t1: int
    """T1s of each plane."""
    bytes: int
    """Size of the file."""
    seed: int
    """Seed of the file's random bytes."""
    goodput: tuple[GoodputBin, ...]
    """Goodput at the receiver over time."""
    sender: Transfer
    """What `mrc send` printed."""
    receiver: Transfer
    """What `mrc recv` printed."""


# ---- The command ---------------------------------------------------------------------------------


HELP = "send a file through a test bed while one of its planes fails"
EXAMPLES = """\
examples:
  mrc demo                             256 MiB over four planes of 500 Mbit/s
  mrc demo --planes 8 --rate 200mbit --size 512MiB
  mrc demo --json | jq .recovery_seconds
"""
_MIN_BYTES = 1 << 20


def size(text: str) -> int:
    """268435456, 256MiB, 1 GiB."""
    if (count := parse_short_size(text)) < _MIN_BYTES:
        wrong = "less than 1 MiB: the file would arrive before the plane fails"
        raise ValueError(f"{text!r} is {wrong}")
    return count


def rate(text: str) -> int:
    """500mbit; not none, as for other test beds."""
    if text == "none":
        raise ValueError("the demo compares goodput with the rate: name a rate")
    return parse_short_rate(text)


def planes(text: str) -> int:
    """Enough planes that one survives the fault of another."""
    if not text.isdigit() or int(text) < FAULTY_PLANE:
        raise ValueError(
            f"{text!r} is not a number of planes from {FAULTY_PLANE}: one of the planes fails"
        )
    return int(text)


OPTIONS = f"""
--rate RATE      rate of each plane [%(default)s]
--planes PLANES  number of planes, at least {FAULTY_PLANE} [%(default)s]
--t1 T1          T1s in each plane [%(default)s]
--size SIZE      size of the file, at least 1MiB [%(default)s]
--seed SEED      seed of the random bytes in the file [%(default)s]
--name NAME      name of the test bed [demo-PID]
--keep           keep the test bed up after the demo
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add(
        parser,
        OPTIONS,
        rate={"type": rate, "default": "500mbit"},
        planes={"type": planes, "default": 4},
        t1={"type": int, "default": 2},
        size={"type": size, "default": "256MiB"},
        seed={"type": int, "default": 1},
    )
    Output.add_options(parser)


def run(args: argparse.Namespace) -> int:
    if args.keep:
        rootless.enter(create=True)
    else:
        rootless.become_root()
    plan = DemoPlan(
        name=args.name or f"demo-{os.getpid()}",
        rate_bps=args.rate,
        planes=args.planes,
        t1=args.t1,
        bytes=args.size,
        seed=args.seed,
        keep=args.keep,
    )
    try:
        return run_async(_demo(plan, Output.of(args)))
    except ArgumentError as error:
        raise UsageError(args.prog, str(error)) from error


async def _demo(plan: DemoPlan, out: Output) -> int:
    Testbed.require_programs()
    earlier = await in_thread(measure_processors)
    if earlier.is_busy:
        out.note(f"this machine {earlier}; the figures below are lower for it")
    result = await run_demo(plan, out.note)
    machine = min(earlier, await in_thread(measure_processors), key=attrgetter("share"))
    out.text(_planes_table(result))
    out.text("")
    lower = "; the figures above are lower for it" if machine.is_busy else ""
    out.text("\n".join([*_summary(result), f"the machine     {machine}{lower}"]))
    out.result(replace(result.report(), processor_share=machine.share))
    return Exit.OK if result.identical else Exit.NOT_VERIFIED


def _planes_table(result: DemoResult) -> str:
    """The rate of each plane's payload before the fault, during it, and after healing."""
    at_fault, at_heal, at_end = result.plane_bytes
    phases: tuple[tuple[float, dict[int, int], dict[int, int]], ...] = (
        (result.failed - result.began, {}, at_fault),
        (result.healed - result.failed, at_fault, at_heal),
        (result.ended - result.healed, at_heal, at_end),
    )
    head = ("plane", "before", "while silent", "after healing", "packets", "lost", "share")
    total = sum(plane["sent_bytes"] for plane in result.sender["planes"]) or 1
    rows = []
    for plane in result.sender["planes"]:
        number = plane["plane"]
        rates = (
            scaled(max(end.get(number, 0) - begin.get(number, 0), 0) * 8 / seconds, "bit/s")
            if seconds > 0
            else "not measured"
            for seconds, begin, end in phases
        )
        share = f"{plane['sent_bytes'] / total:.1%}"
        rows.append((number, *rates, plane["sent_packets"], plane["lost_packets"], share))
    return format_table(head, rows)


def _summary(result: DemoResult) -> list[str]:
    planes = result.plan.planes
    before = result.limit(planes, result.before)
    after = result.limit(planes - 1, result.after)
    return [
        f"sent            {scaled(result.plan.bytes, 'B')} in"
        f" {scaled(result.ended - result.began, 's')}",
        f"goodput before  {scaled(result.goodput_before, 'bit/s')},"
        f" {result.goodput_before / before:.1%} of {scaled(before, 'bit/s')}, which"
        f" {counted(planes, 'plane')} can carry with full buckets",
        f"goodput after   {scaled(result.goodput_after, 'bit/s')},"
        f" {result.goodput_after / after:.1%} of {scaled(after, 'bit/s')}, which the surviving"
        f" {planes - 1} can carry",
        f"recovery        {_recovery(result)}",
        f"retransmitted   {result.sender['retransmitted_packets']} of"
        f" {counted(result.sender['sent_packets'], 'packet')}",
        f"the bytes       {'are the same' if result.identical else 'DIFFER'}",
    ]


def _recovery(result: DemoResult) -> str:
    level = f"{RECOVERED_SHARE:.0%} of the surviving capacity"
    if not result.dips:
        return f"goodput was never below {level}"
    seconds = result.recovery_seconds
    if seconds is None:
        back = "it did not recover"
    elif seconds == 0:
        back = "it did not dip at the fault"
    else:
        back = f"it recovered {scaled(seconds, 's')} after the fault"
    return f"goodput was below {level} for {scaled(result.below_seconds, 's')} in total; {back}"


# ---- Whether this machine is busy ----------------------------------------------------------------

# Some processes spin for a moment. What they get falls short when other programs run, when a
# hypervisor withholds time, and when a control group limits it.

_BUSY_SHARE = 0.9
"""A machine on which programs get less is busy: figures are lower for it."""

_MOST = 4  # two hosts, each with a thread for packets and one for its program
_SPIN = """\
import sys, time
end, used = time.monotonic() + float(sys.argv[1]), time.process_time()
while time.monotonic() < end: pass
print(time.process_time() - used)
"""


class Processors(Struct, frozen=True):
    """A measurement. Shares are from 0 to 1."""

    count: int
    """processors that were measured"""
    share: float
    """of their time that spinning programs got"""
    others: float
    """of the time of all the machine's processors that other programs took"""
    stolen: float
    """of that time that a hypervisor withheld"""

    @property
    def is_busy(self) -> bool:
        return self.share < _BUSY_SHARE

    def __str__(self) -> str:
        """The end of a sentence that begins with "this machine"."""
        got = f"mrc gets {self.share:.0%} of the time of {counted(self.count, 'processor')}"
        if not self.is_busy:
            return f"is not busy: {got}"
        causes = [f"other programs take {self.others:.0%} of its processors"]
        if self.stolen >= 0.01:
            causes.append(f"its hypervisor withholds {self.stolen:.0%}")
        return f"is busy: {got}; {', '.join(causes)}"


def measure_processors(seconds: float = 0.4) -> Processors:
    """Measures for some `seconds`."""
    count = min(_MOST, len(os.sched_getaffinity(0)))
    before = system.processor_times()
    command = [sys.executable, "-I", "-S", "-c", _SPIN, str(seconds)]
    spinning = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    got = sum(float(process.communicate()[0]) for process in spinning)
    total, busy, stolen = (
        after - early for early, after in zip(before, system.processor_times(), strict=True)
    )
    return processor_shares(count, got, count * seconds, total, busy, stolen)


def processor_shares(
    count: int, got: float, wanted: float, total: float, busy: float, stolen: float
) -> Processors:
    """From the seconds that programs got and wanted, and those of all processors. Pure."""
    others = max(busy - got, 0.0) / total if total else 0.0
    return Processors(count, min(got / wanted, 1.0), others, stolen / total if total else 0.0)
