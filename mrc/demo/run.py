# SPDX-License-Identifier: Apache-2.0
"""The demonstration: a file crosses a test bed, and a plane falls silent on the way.

`mrc recv` and `mrc send` run as processes of their own inside two hosts of the test bed; what is
measured is the payload that the receiver has placed, which it records in bins of a few
milliseconds. What was received is compared with what was sent by reading both files, independently
of mrc's own digest.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mrc.demo.child import Child, DemoError
from mrc.demo.timeline import Bin, Interval, Timeline
from mrc.errors import StateError
from mrc.results.demo import Demo, GoodputBin
from mrc.results.plain import like
from mrc.tasks import cancelled
from mrc.testbed.bed import Testbed
from mrc.transfer.threads import in_thread

T = TypeVar("T")

SENDER, RECEIVER = "h0", "h1"
FAULTY_PLANE = 2
FAULT_SHARE = 0.5  # of the file, when the plane falls silent
HEAL_SHARE = 0.85  # of the file, when it is healed
SETTLE_SECONDS = 0.1  # slow start, and after the fault the time that recovery may take
WINDOW_SECONDS = 0.05  # goodput at a moment is the mean over so long around it
BIN_SECONDS = 0.02
RECORDED_BIN = "5ms"  # of the receiver
RECOVERED_SHARE = 0.95  # of the surviving capacity

# What a plane's shaper counts of a packet beside its payload: Ethernet, the outer and the inner
# IPv6 header, UDP, and MRC's BTH, METH, TSETH, RETH and ICRC.
WIRE_OVERHEAD_BYTES = 14 + 40 + 40 + 8 + 40
_BLOCK = 1 << 20
_FIRST_BYTES = 1 << 14  # more than the messages that precede the file


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """What to demonstrate, and on which test bed."""

    name: str
    rate_bps: int
    planes: int
    t1: int
    bytes: int
    seed: int
    keep: bool = False

    @property
    def timeout(self) -> float:
        """Seconds after which something must be wrong."""
        return 60 + 10 * self.bytes * 8 / self.rate_bps


@dataclass(slots=True)
class DemoResult:
    """What happened, in moments of the monotonic clock."""

    plan: DemoPlan
    timeline: Timeline
    sender: dict[str, Any]
    receiver: dict[str, Any]
    plane_bytes: list[dict[int, int]]  # sent per plane: at the fault, at the heal, at the end
    began: float
    failed: float
    healed: float
    ended: float
    identical: bool

    @property
    def plane_capacity(self) -> float:
        """Payload bits per second that fit a plane."""
        mtu = int(self.sender["path_mtu_bytes"])
        return self.plan.rate_bps * mtu / (mtu + WIRE_OVERHEAD_BYTES)

    @property
    def capacity(self) -> float:
        return self.plane_capacity * self.plan.planes

    @property
    def surviving_capacity(self) -> float:
        return self.plane_capacity * (self.plan.planes - 1)

    @property
    def goodput_before(self) -> float:
        return self.timeline.goodput(self.began + SETTLE_SECONDS, self.failed)

    @property
    def goodput_after(self) -> float:
        return self.timeline.goodput(self.failed + SETTLE_SECONDS, self.healed)

    @property
    def dips(self) -> list[Interval]:
        """When goodput was below the surviving capacity by more than 5%, fault to healing."""
        level = RECOVERED_SHARE * self.surviving_capacity
        end = self.healed - WINDOW_SECONDS / 2
        return self.timeline.below(self.failed, end, level, WINDOW_SECONDS)

    @property
    def recovery_seconds(self) -> float | None:
        """From the fault to the end of the dip that it caused: 0 for none, None if it stayed."""
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
            identical=self.identical,
            recovery_seconds=self.recovery_seconds,
            below_seconds=self.below_seconds,
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
            sender=self.sender,  # as the process printed it: plain data already
            receiver=self.receiver,
        )


async def run_demo(plan: DemoPlan, say: Callable[[str], None]) -> DemoResult:
    """Builds, runs, measures, compares, and removes what it built; `say` hears each step."""
    bed = _new_bed(plan)
    async with AsyncExitStack() as stack:
        place = _folder_for(2 * plan.bytes)
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="mrc-demo-", dir=place))
        )
        inbox = folder / "inbox"
        inbox.mkdir()
        say(f"writing {plan.bytes} random bytes (seed {plan.seed}) to {folder}")
        source = folder / "demo.bin"
        await in_thread(write_random, source, plan.bytes, plan.seed)
        if not plan.keep:
            stack.callback(bed.down)  # without await: a second signal must not keep it from running
        say(f"building test bed {plan.name}: {plan.planes} planes, {plan.t1} T1s each")
        await in_thread(bed.up)
        if plan.keep:
            say(f"the test bed stays: mrc testbed down --name {plan.name} removes it")
        async with asyncio.timeout(plan.timeout):
            result = await _transfer(plan, bed, source, inbox, say)
        say("comparing both files byte for byte")
        result.identical = await in_thread(identical, source, inbox / source.name)
        return result


def _folder_for(size: int) -> Path | None:
    """Memory if it has room: the network is shown here, not the disk. None: the default.

    Whoever sets TMPDIR has chosen.
    """
    memory = Path("/dev/shm")
    with suppress(OSError):
        if "TMPDIR" in os.environ:
            return None
        if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2 * size:
            return memory
    return None


def _new_bed(plan: DemoPlan) -> Testbed:
    try:
        Testbed.existing(plan.name)
    except StateError:
        return Testbed(plan.name, planes=plan.planes, t1=plan.t1, rate=str(plan.rate_bps))
    # It may be in use, and it would be gone afterwards.
    raise DemoError(f"test bed {plan.name} is up already; choose another --name")


async def _transfer(
    plan: DemoPlan, bed: Testbed, source: Path, inbox: Path, say: Callable[[str], None]
) -> DemoResult:
    receiver, sender = Child(f"mrc recv on {RECEIVER}"), Child(f"mrc send on {SENDER}")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(receiver.stop)
        options = ["--once", "--bins", RECORDED_BIN, "--output", str(inbox)]
        await receiver.start(bed, RECEIVER, ["recv", *options])
        await _first(receiver.listening.wait(), receiver)
        say(f"sending from {SENDER} to {RECEIVER}")
        stack.push_async_callback(sender.stop)
        await sender.start(bed, SENDER, ["send", str(source), RECEIVER])
        work = _fail_and_heal(plan, bed, receiver, sender, say)
        failed, healed, plane_bytes = await _first(work, sender, receiver)
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
        healed=healed,
        ended=ended,
        identical=False,
    )


async def _first(work: Coroutine[Any, Any, T], *children: Child) -> T:
    """Runs `work` to its end, unless one of `children` ends in failure before."""
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
    plan: DemoPlan, bed: Testbed, receiver: Child, sender: Child, say: Callable[[str], None]
) -> tuple[float, float, list[dict[int, int]]]:
    """Returns the moments of both, and what had been sent per plane by then."""
    target = f"plane:{FAULTY_PLANE}"
    await receiver.until(int(plan.bytes * FAULT_SHARE))
    at_fault = await sender.plane_bytes()
    # Taken before the command, which takes a few milliseconds: so recovery is never understated.
    failed = time.monotonic()
    await in_thread(bed.fail, target)
    say(f"plane {FAULTY_PLANE} is silent")
    await receiver.until(int(plan.bytes * HEAL_SHARE))
    at_heal = await sender.plane_bytes()
    healed = time.monotonic()
    await in_thread(bed.heal, target)
    say(f"plane {FAULTY_PLANE} is healed")
    return failed, healed, [at_fault, at_heal]


def write_random(path: Path, count: int, seed: int) -> None:
    """Fills a new file with `count` bytes that `seed` determines."""
    generator = random.Random(seed)
    with path.open("wb") as file:
        for start in range(0, count, _BLOCK):
            file.write(generator.randbytes(min(_BLOCK, count - start)))


def identical(left: Path, right: Path) -> bool:
    """Whether two files hold the same bytes, by reading both."""
    with left.open("rb") as one, right.open("rb") as other:
        while True:
            block = one.read(_BLOCK)
            if block != other.read(_BLOCK):
                return False
            if not block:
                return True
