# SPDX-License-Identifier: Apache-2.0
"""`mrc perf` in virtual time: a server, and clients one after the other, some with a fault.

A test ends in time, counts the bytes that arrived, and the server serves the next client.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import product
from random import Random
from typing import Any

from virtual.connect import stalls
from virtual.copy import FAULTS as COPY_FAULTS
from virtual.copy import judge_cause
from virtual.host import Host
from virtual.network import Link
from virtual.world import Audit, Command, World, start_command, use_commands

_CONNECT_SECONDS = 20  # --timeout of the client
_END_SECONDS = 5  # of a test without a fault, after its time
_SETTLE_SECONDS = 1.0  # for the writes in flight, which both ends count
_SILENCE_SECONDS = 9  # of either end, after which a QP fails; a test does not begin again
_BOUND_SECONDS = 200  # in which a client with a fault ends
_QUIET_SECONDS = 120  # between clients
FAULTS = [fault for fault in COPY_FAULTS if not fault.startswith("disk")]


@dataclass
class Test:
    """One run of the client."""

    seconds: float
    """of -t; 0: -n"""
    total_bytes: int
    omit_seconds: float
    qps: int
    size: int
    direction: str
    latency: bool
    fault: str = ""
    fault_seconds: float = 0.0

    @property
    def options(self) -> str:
        """As typed."""
        length = f"-t {self.seconds:g}" if self.seconds else f"-n {self.total_bytes}"
        if self.omit_seconds:
            length += f" -O {self.omit_seconds:g}"
        if self.latency:
            return f"{length} --lat --size {self.size}"
        return f"{length} -P {self.qps} --size {self.size} {self.direction}"


@dataclass
class Scenario:
    """What a seed draws."""

    planes: int
    bits_per_second: float
    delay_ms: float
    loss: float
    stalls: str
    tests: list[Test] = field(default_factory=list)

    @classmethod
    def drawn(cls, rng: Random) -> Scenario:
        """Up to three clients; the last one meets no fault."""
        made = cls(
            rng.choice((1, 2)), 10 ** rng.uniform(6.7, 7.5), 10 ** rng.uniform(-1, 2),
            rng.choice((0, 0, 0.001, 0.01)), rng.choice(("idle", "idle", "busy")),
        )  # fmt: skip
        for left in reversed(range(rng.choice((1, 2, 3)))):
            made.tests.append(made._test(rng, faulty=left > 0))
        return made

    @property
    def trip_seconds(self) -> float:
        """Of a message through a full queue."""
        return self.delay_ms / 1000 + 8 * Link.queue_bytes / self.bits_per_second

    def _test(self, rng: Random, *, faulty: bool) -> Test:
        seconds = rng.choice((0.0, 0.5, 1.0, 2.0))
        latency = rng.random() < 0.2
        many = self.bits_per_second * self.planes / 8
        made = Test(
            seconds, int(many * rng.uniform(0.1, 1)), rng.choice((0.0, 0.0, 0.3)),
            rng.choice((1, 1, 2, 4)), rng.choice((2, 5000, 65536, 1 << 20)),
            rng.choice(("", "-R", "--bidir")), latency,
        )  # fmt: skip
        if latency:
            made.size, made.total_bytes = rng.choice((2, 5000)), rng.randrange(1, 100) * 5000
        if not seconds:
            made.omit_seconds = 0.0
        elif made.size == 2 and not latency:
            made.size = 1000  # the processor would be the limit
        if made.size == 2:
            made.total_bytes = rng.randrange(2, 2000)
        if faulty:
            made.fault = rng.choice(FAULTS)
            made.fault_seconds = rng.uniform(0, (seconds or 1) + self.delay_ms / 50)
        return made


def run(world: World, audit: Audit) -> None:
    """A server and its clients."""
    scenario = Scenario.drawn(world.rng)
    audit.describe(scenario)
    a, b = (world.host(name, scenario.planes, mtu=9000) for name in "ab")
    world.join(
        a, b, bits_per_second=scenario.bits_per_second, delay_ms=scenario.delay_ms,
        loss=scenario.loss,
    )  # fmt: skip
    use_commands(world, "perf")
    server: Command | None = None
    for test in scenario.tests:
        for host in (a, b):
            host.stall_of = stalls(scenario.stalls, Random(world.rng.random()))
        if server is None or server.code is not None or not b.alive:
            server = start_command(b, "perf --server --insecure --quiet")
            world.run(2)
        if not _client(world, audit, scenario, test, (a, b), server):
            return
    assert server is not None
    for host in (a, b):
        host.stall_of = lambda: 0
    server.interrupt()
    audit.check(world.run_until(server.task, 60), "mrc perf --server does not end")
    audit.check(not server.crashed, server.crashed)
    audit.check(server.code == 130, f"interrupted, but: {server}")
    audit.nothing_left(world)


def _client(
    world: World, audit: Audit, scenario: Scenario, test: Test, hosts: tuple[Host, Host],
    server: Command,
) -> bool:  # fmt: skip
    """Runs one client; whether it has ended."""
    a, b = hosts
    began, printed, carried = world.now, len(a.printed), _carried(world, a, b)
    line = f"perf b {test.options} --timeout {_CONNECT_SECONDS} -J --quiet --insecure"
    client = start_command(a, line)
    a.interrupt, b.interrupt = client.interrupt, server.interrupt
    if test.fault:
        rng = Random(world.rng.random())
        world.agenda.after(
            test.fault_seconds * 1e9, lambda: COPY_FAULTS[test.fault](world, a, b, rng)
        )
    ended = world.run_until(client.task, _BOUND_SECONDS)
    took = world.now - began
    audit.result(f"{took:.3f} s, {test.fault or 'no fault'}: {client}")
    audit.check(ended or not a.alive, f"mrc perf has not ended after {_BOUND_SECONDS} s")
    audit.check(not client.crashed, client.crashed)
    if not ended and a.alive:
        return False
    if not (test.fault.endswith("sleeps") and took > _SILENCE_SECONDS):
        judge_cause(test.fault, client, audit)
    if not test.fault:
        audit.check(client.code == 0, f"nothing was wrong, but: {client}")
    elif test.fault == "plane down" and scenario.planes > 1:
        audit.check(client.code == 0, f"another plane works, but: {client}")
    if not test.fault:
        most = test.omit_seconds + test.seconds + _END_SECONDS + 60 * scenario.trip_seconds
        audit.check(took < most or not test.seconds, f"{test.options}: took {took:.1f} s")
    if (text := "".join(a.printed[printed:])) and client.code in (0, 130):
        most_bytes = [now - then for now, then in zip(_carried(world, a, b), carried, strict=True)]
        (result,) = json.loads(text)["results"] or (None,)
        if result is not None:
            audit.check(result["interrupted"] == (client.code == 130), f"{client} says it was not")
            _judge(audit, scenario, test, result, most_bytes)
    world.run(_QUIET_SECONDS)
    return True


def _carried(world: World, a: Host, b: Host) -> list[int]:
    """Bytes that arrived at each host from the other, also where a QP pairs ports crosswise."""
    ports = list(product(a.interfaces, b.interfaces))
    return [
        sum(world.network.link(theirs.name, ours.name).carried_bytes for ours, theirs in ports),
        sum(world.network.link(ours.name, theirs.name).carried_bytes for ours, theirs in ports),
    ]


def _judge(
    audit: Audit, scenario: Scenario, test: Test, result: dict[str, Any], most_bytes: list[int]
) -> None:
    """The result is what happened; `most_bytes` arrived at the client, and at the server."""
    client, server = result["client"], result["server"]
    for here, there, most in ((client, server, most_bytes[0]), (server, client, most_bytes[1])):
        if here is None:
            continue
        got, seconds = here["received_bytes"], here["seconds"]
        audit.check(got <= most, f"received {got} bytes, but {most} arrived")
        if there is not None and not test.omit_seconds:
            wrote = there["written_bytes"]
            audit.check(wrote <= got, f"{wrote} bytes were written, {got} received")
        if not test.fault and test.seconds:
            late = abs(seconds - test.seconds)
            most_late = _SETTLE_SECONDS + 4 * scenario.trip_seconds
            audit.check(late < most_late, f"{seconds} s instead of {test.seconds}")
        if not test.fault and not test.seconds:
            wrote, wants = here["written_bytes"], _wants(test, is_client=here is client)
            audit.check(wrote == wants, f"wrote {wrote} bytes instead of {wants}")
    for what in ("written_bytes", "received_bytes"):
        total = sum(interval[what] for interval in result["intervals"])
        audit.check(total == client[what], f"{what}: {client[what]}, the intervals have {total}")


def _wants(test: Test, *, is_client: bool) -> int:
    """What an end writes with -n."""
    writes = test.latency or test.direction == "--bidir" or is_client != (test.direction == "-R")
    total = test.total_bytes
    if test.latency:
        total = -(-total // test.size) * test.size  # whole messages
    return total if writes else 0
