# SPDX-License-Identifier: Apache-2.0
"""Tests of mrc perf over loopback, what they print, their options, and histograms."""

from __future__ import annotations

import asyncio
import csv
import itertools
import json
import mmap
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from endpoints import BUDGET_SECONDS, LOOPBACK, listening_to_itself, loopback_config, spawn
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import asdict, replace

import mrc
from mrc import QP, Context, PeerGoneError, ProtocolError
from mrc.aio.recording import Recording
from mrc.cli.main import main
from mrc.cli.output import Output
from mrc.config import Limits
from mrc.errors import ArgumentError, MrcError, PathError
from mrc.linux import system
from mrc.mailbox import MailboxSession
from mrc.perf import load
from mrc.perf import session as perf_session
from mrc.perf.cli import INSTEAD
from mrc.perf.load import Pattern, PerfDirection, PerfPlan
from mrc.perf.measurement import interval_of
from mrc.perf.measurement import test_of as shown_of
from mrc.perf.meter import Histogram, History, MeterInterval, PeerBins
from mrc.perf.report import PerfReport, interval_line, slow_planes, summary_lines, sweep_table
from mrc.perf.results import (
    EvChange,
    Latency,
    PerfMachine,
    PlaneChange,
    SendWaits,
    ShareChange,
    StartEvent,
    TestEvent,
)
from mrc.perf.session import (
    Client,
    ClientTest,
    PerfOutcome,
    PerfServer,
    PlanRefusedError,
    connect,
    next_lap,
)
from mrc.perf.session import TestResult as Result
from mrc.results import like, plain

MIB = 1 << 20
SERVED = {"service": "perf"}
NONE = Latency(0, 0, 0, 0, 0, 0, 0)

# ---- plans ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"size": -1}, "size"),
        ({"size": (1 << 30) + 1}, "size"),
        ({"size": 1.5}, "size"),
        ({"qps": 0}, "qps"),
        ({"depth": 2000}, "depth"),
        ({"seconds": -1.0}, "seconds"),
        ({"seconds": 0.0}, "seconds, total_bytes"),
        ({"total_bytes": 1}, "seconds, total_bytes"),
        ({"seconds": 0.0, "total_bytes": 1, "size": 0, "pattern": Pattern.PING_PONG}, "size"),
        ({"size": 0}, "size"),
        ({"seconds": 0.0, "total_bytes": 1, "omit_seconds": 1.0}, "omit_seconds"),
        ({"rate_bits_per_second": float("nan")}, "rate_bits_per_second"),
        ({"qps": True}, "qps"),
        ({"bin_ns": 999}, "bin_ns"),
        ({"bin_ns": 1e6}, "bin_ns"),
        ({"redundant": True, "size": 65537}, "size"),
    ],
)
def test_plan__refuses(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{name}: "):
        PerfPlan(**options)


def test_plan__travels() -> None:
    plan = PerfPlan(Pattern.STREAM, PerfDirection.BOTH, 4096, 3, 5, 1.5, 0, 0.25, 1e9, 1000000)
    assert PerfPlan.from_dict(plan.to_dict()) == plan
    for broken in ({}, None, plan.to_dict() | {"qps": 1000}, plan.to_dict() | {"pattern": "x"}):
        with pytest.raises(ProtocolError, match="plan"):
            PerfPlan.from_dict(broken)


def test_plan__memory_is_bounded() -> None:
    assert PerfPlan(size=1 << 30, qps=256, depth=1024).memory_bytes == 1 << 30
    assert PerfPlan(size=4096, qps=2, depth=8).memory_bytes == 16 * 4096
    assert PerfPlan(size=0, pattern=Pattern.PING_PONG).memory_bytes == 1


def test_outcome__travels() -> None:
    interval = moving({1: 600, 2: 400}, {1: 500, 2: 0}, (2,), (1,))
    outcome = PerfOutcome(interval, 7, Latency(7, 1, 2, 3, 4, 5, 6))
    assert PerfOutcome.from_dict(outcome.to_dict(), PeerBins()) == outcome
    assert interval.written_bits_per_second == 4000
    with pytest.raises(ProtocolError, match="result"):
        PerfOutcome.from_dict({"total": {}}, PeerBins())


def moving(
    there: dict[int, int],
    back: dict[int, int],
    slow: tuple[int, ...] = (),
    suspended: tuple[int, ...] = (),
) -> MeterInterval:
    """What the planes carry each way; those that are slow, and those that are suspended."""
    return MeterInterval(0.0, 2.0, 1000, 500, 10, 1, 0, 3, 0.5, there, back, slow, suspended)


def _outcome_with_history() -> PerfOutcome:
    history = History(
        Recording(5, 2_000_000, 1_000_000, {1: (7, 9)}, 10, 1_500_000, 100, 20),
        (EvChange(1, 7, 1, "t1:1.0", "GOOD", "SKIP", "MARKED"),),
        (PlaneChange(2, 7, 1, True, "SILENT"),),
        (ShareChange(3, 7, 1, True, 40, "SLOW"),),
        0,
    )
    return PerfOutcome(moving({1: 600}, {1: 500}), 7, Latency(7, 1, 2, 3, 4, 5, 6), history)


def _set(told: Any, path: str, value: object) -> None:
    *way, last = path.split(".")
    for step in way:
        told = told[int(step) if step.isdigit() else step]
    told[last] = value


def test_outcome__with_a_history_travels() -> None:
    outcome, bins = _outcome_with_history(), PeerBins()
    bins.add(1, [7, 9])
    assert PerfOutcome.from_dict(json.loads(json.dumps(outcome.to_dict())), bins) == outcome


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("messages", 1.5), ("messages", 10**400), ("latency.p50_ns", "1"), ("total.seconds", "2"),
        ("total.seconds", 1e300), ("total.planes", []), ("total.planes", {"x": 1}),
        ("total.planes", {"1": None}), ("total.planes_slow", [[]]), ("history.evs", [5]),
        ("history.recording.width_ns", 0), ("history.recording.duration_ns", None),
        ("history.planes.0.suspended", "yes"), ("history.evs.0.path", []),
        ("history.lost_changes", -1),
    ],
)  # fmt: skip
def test_outcome__of_a_hostile_server(path: str, value: object) -> None:
    told, bins = json.loads(json.dumps(_outcome_with_history().to_dict())), PeerBins()
    bins.add(1, [7, 9])
    _set(told, path, value)
    with pytest.raises(ProtocolError, match="a result that cannot be read"):
        PerfOutcome.from_dict(told, bins)


def test_outcome__planes_with_bins_of_different_length() -> None:
    bins = PeerBins()
    bins.add(1, [7, 9])
    bins.add(2, [7])
    with pytest.raises(ProtocolError, match="a result that cannot be read"):
        PerfOutcome.from_dict(_outcome_with_history().to_dict(), bins)


def test_outcome__text_of_a_hostile_server_is_harmless() -> None:
    told, bins = json.loads(json.dumps(_outcome_with_history().to_dict())), PeerBins()
    _set(told, "history.evs.0.reason", "\x1b[2J" + "x" * 1000)
    history = PerfOutcome.from_dict(told, bins).history
    assert history is not None
    assert history.evs[0].reason.startswith("\\x1b[2Jxx")
    assert len(history.evs[0].reason) <= 300


@pytest.mark.parametrize(
    ("direction", "shares"),
    [
        (PerfDirection.FORWARD, "planes 1: 60% 2: 40%"),
        (PerfDirection.BOTH, "planes 1: 60% 2: 40%"),
        (PerfDirection.REVERSE, "planes 1: 25% 2: 75%"),
    ],
)
def test_interval_line__shares_of_what_the_plan_moves(
    direction: PerfDirection, shares: str
) -> None:
    interval = interval_of(moving({1: 600, 2: 400}, {1: 125, 2: 375}))
    assert interval_line(PerfPlan(direction=direction), interval).endswith(shares)
    assert "EV changes" not in interval_line(PerfPlan(), interval)
    assert " EV changes  " in interval_line(PerfPlan(), interval, verbose=True)


def test_interval__slow_and_suspended_planes_are_marked() -> None:
    interval = moving({1: 600, 2: 30, 3: 370}, {1: 0, 2: 0, 3: 0}, (2,), (3,))
    planes = "planes 1: 60% 2: 3% (slow) 3: 37% (suspended)"
    assert interval_line(PerfPlan(), interval_of(interval)).endswith(planes)
    shown = plain(interval_of(interval))
    assert shown["planes"][:2] == [
        {
            "plane": plane, "sent_bytes": sent, "carried_percent": percent, "slow": slow,
            "suspended": False, "weight": 100,
        }
        for plane, sent, percent, slow in ((1, 600, 300, False), (2, 30, 6, True))
    ]  # fmt: skip
    assert shown["planes"][2]["suspended"]
    assert shown["planes_received"][0] == {
        "plane": 1, "received_bytes": 0, "carried_percent": None,
    }  # fmt: skip
    assert "planes_slow" not in shown


@pytest.mark.parametrize(
    ("direction", "said"),
    [
        (PerfDirection.FORWARD, ["plane 2 carried 9% of the others"]),
        (PerfDirection.REVERSE, ["plane 1 carried 5% of the others"]),
        (PerfDirection.BOTH, ["plane 2 carried 9% of the others",
                              "plane 1 carried 5% of the others on the way back"]),
    ],
)  # fmt: skip
def test_slow_planes__in_each_direction(direction: PerfDirection, said: list[str]) -> None:
    there, back = {1: 100 * MIB, 2: 9 * MIB}, {1: 5 * MIB, 2: 100 * MIB}
    moved = PerfOutcome(moving(there, back), 0, NONE)
    result = Result(PerfPlan(direction=direction), moved, None, (), False)
    assert slow_planes(result.plan, shown_of(result)) == said


def test_slow_planes__not_one_that_was_suspended_meanwhile() -> None:
    moved = {1: 100 * MIB, 2: 9 * MIB, 3: 100 * MIB, 4: 8 * MIB}
    total = moving(moved, {})
    part = replace(total, planes_suspended=(2,))
    result = Result(PerfPlan(), PerfOutcome(total, 0, NONE), None, (part, total), False)
    assert slow_planes(result.plan, shown_of(result)) == ["plane 4 carried 8% of the others"]


def test_slow_planes__not_one_with_a_weight() -> None:
    total = replace(moving({1: 100 * MIB, 2: 9 * MIB}, {}), weights={2: 10})
    result = Result(PerfPlan(), PerfOutcome(total, 0, NONE), None, (), False)
    assert slow_planes(result.plan, shown_of(result)) == []
    assert interval_line(PerfPlan(), interval_of(total)).endswith("planes 1: 92% 2: 8% (weight 10)")
    assert interval_of(total).planes[1].weight == 10


# ---- both ends ------------------------------------------------------------------------------


async def test_regions__their_memory_ends_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[mmap.mmap] = []
    memory = system.anonymous_memory

    @contextmanager
    def anonymous(length: int) -> Iterator[mmap.mmap]:
        with memory(length) as pages:
            taken.append(pages)
            yield pages

    monkeypatch.setattr(system, "anonymous_memory", anonymous)
    async with mrc.open(loopback_config()) as ctx, load.regions(ctx, 4096) as regions:
        assert regions.target.length == 4096
    assert [each.closed for each in taken] == [True, True]


@asynccontextmanager
async def ends(**options: Any) -> AsyncIterator[tuple[Client, list[PerfOutcome]]]:
    """A client, and the server's outcome of each test."""
    outcomes: list[PerfOutcome] = []
    async with (
        mrc.open(loopback_config()) as near,
        listening_to_itself(loopback_config(**options), private=SERVED) as (far, listener),
    ):
        server = PerfServer(far, lambda _client, _plan, outcome: outcomes.append(outcome))

        async def serve() -> None:
            async with asyncio.TaskGroup() as serving:
                async for qp in listener:
                    serving.create_task(server.serve(qp))

        serving = spawn(serve())
        try:
            async with connect(near, LOOPBACK[4], listener.port, timeout=BUDGET_SECONDS) as client:
                yield client, outcomes
        finally:
            await listener.close()
            await asyncio.gather(serving)


async def test_stream__odd_rest() -> None:
    plan = PerfPlan(size=1000, seconds=0.0, total_bytes=2500)
    async with ends() as (client, _):
        result = await client.run(plan)
    assert (result.client.messages, result.client.total.written_bytes) == (3, 2500)


async def test_stream__rate_is_kept() -> None:
    plan = PerfPlan(size=16384, seconds=0.5, omit_seconds=0.1, rate_bits_per_second=40e6)
    async with ends() as (client, _):
        result = await client.run(plan)
    # A slow machine may write less. None may write more than the rate and its catch-up allowance.
    assert 0 < result.client.total.written_bits_per_second < 40e6 * 1.1


async def test_stream__ends_at_once_whatever_the_rate() -> None:
    plan = PerfPlan(direction=PerfDirection.BOTH, size=MIB, seconds=0.1, rate_bits_per_second=8e3)
    async with ends() as (client, _):  # a write in 1000 seconds; eight more wait for their turn
        result = await client.run(plan)
    assert result.server is not None
    assert result.client.messages <= 1


@pytest.mark.parametrize("pattern", Pattern)
async def test_redundant__each_packet_leaves_twice(pattern: Pattern) -> None:
    plan = PerfPlan(pattern, size=4096, seconds=0.0, total_bytes=16384, redundant=True)
    async with ends() as (client, _):
        result = await client.run(plan)
        counters = await client.session.ctx.counters()
    assert result.client.messages == 4
    assert counters["TX_REDUNDANT"] >= 4


@pytest.mark.parametrize("direction", [PerfDirection.FORWARD, PerfDirection.REVERSE])
async def test_stream__its_duration_is_kept_where_writes_take_longer(
    direction: PerfDirection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow link the writes in flight would take a minute more."""
    monkeypatch.setattr(load, "SETTLE_SECONDS", 0.01)
    begun: list[int] = []
    write = QP.write

    async def slow(qp: QP, *args: Any, imm: int | None = None, **options: Any) -> int:
        if imm is None:
            begun.append(args[0].length)
            await asyncio.get_running_loop().create_future()
        return await write(qp, *args, imm=imm, **options)

    monkeypatch.setattr(QP, "write", slow)
    async with ends() as (client, outcomes):
        result = await client.run(PerfPlan(seconds=0.5, direction=direction, depth=3))
        assert (len(begun), result.interrupted) == (3, False)
        assert result.server is not None
    assert len(outcomes) == 1


async def test_run__connects_some_qps_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    connects, most = 0, 0
    connect = Context.connect

    async def counted(context: Context, *args: Any, **options: Any) -> QP:
        nonlocal connects, most
        connects += 1
        most = max(most, connects)
        try:
            return await connect(context, *args, **options)
        finally:
            connects -= 1

    async with ends() as (client, outcomes):
        monkeypatch.setattr(Context, "connect", counted)
        await client.run(PerfPlan(qps=20, size=100, seconds=0, total_bytes=100_000))
    assert 1 < most <= 8 and len(outcomes) == 1


async def test_stream__intervals_add_up() -> None:
    seen: list[MeterInterval] = []
    async with ends() as (client, _):
        result = await client.run(
            PerfPlan(size=4096, seconds=0.5), interval_seconds=0.001, on_interval=seen.append
        )
    assert result.intervals == tuple(seen) and len(seen) >= 2
    assert seen[0].start_seconds == 0
    for before, after in itertools.pairwise(seen):
        assert after.start_seconds == pytest.approx(before.start_seconds + before.seconds)
    written = sum(interval.written_bytes for interval in seen)
    assert 0 < written == result.client.total.written_bytes
    seconds = sum(interval.seconds for interval in seen)
    assert seconds == pytest.approx(result.client.total.seconds)


async def test_waits__make_up_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrc.perf.meter._SAMPLE_SECONDS", 0.001)
    async with ends() as (client, _):
        result = await client.run(PerfPlan(size=4096, seconds=0.2))
    assert result.server is not None
    total, waits = result.client.total, result.server.total.waits
    assert sum(asdict(total.waits).values()) == pytest.approx(total.seconds)
    assert waits == SendWaits(program_seconds=waits.program_seconds) != SendWaits()


@pytest.mark.parametrize(("seconds", "stop"), [(0.1, 0.0), (0.1, 0.3), (0.0, 0.0)])
async def test_stream__a_short_test_has_an_interval(
    monkeypatch: pytest.MonkeyPatch, seconds: float, stop: float
) -> None:
    """Even one that ends when its first interval would, or long before that. A stop of the process
    begins no further one.
    """
    laps, loop = ClientTest._laps, asyncio.get_running_loop()

    def begin(test: ClientTest) -> Any:
        loop.call_later(0.05, time.sleep, stop)
        return laps(test)

    monkeypatch.setattr(ClientTest, "_laps", begin)
    plan = PerfPlan(size=4096, seconds=seconds, total_bytes=0 if seconds else 65536)
    async with ends() as (client, _):
        result = await client.run(plan, interval_seconds=seconds or 60.0)
    (interval,) = result.intervals
    assert interval == result.client.total


@pytest.mark.parametrize("direction", PerfDirection)
@pytest.mark.parametrize(
    ("seconds", "omit_seconds", "messages"), [(0.0, 0.0, 160), (0.1, 0.0, 0), (0.1, 0.05, 0)]
)
async def test_stream__both_ends_count_the_same(
    direction: PerfDirection, seconds: float, omit_seconds: float, messages: int
) -> None:
    size = 65536
    plan = PerfPlan(
        direction=direction, size=size, qps=2, depth=3, seconds=seconds,
        omit_seconds=omit_seconds, total_bytes=messages * size,
    )  # fmt: skip
    async with ends() as (client, outcomes):
        result = await client.run(plan)
    here, there = result.client, result.server
    assert there is not None and not result.interrupted
    assert to_builtins(there) == to_builtins(outcomes[0])
    assert here.total.seconds == there.total.seconds
    for end, peer, writes in (
        (here, there, plan.client_writes),
        (there, here, plan.server_writes),
    ):
        assert (end.messages > 0) is writes
        assert end.messages == messages or not messages or not writes
        assert end.latency.count == end.messages
        assert end.total.written_bytes == peer.total.received_bytes == end.messages * size
        assert sum(end.total.planes.values()) >= end.total.written_bytes
        assert sum(end.total.planes_received.values()) == end.total.received_bytes


@pytest.mark.parametrize("seconds", [None, "1", -1.0, 1e300])
def test_outcome__of_a_client_without_a_duration(seconds: object) -> None:
    with pytest.raises(ProtocolError, match="the peer sent no duration of the test"):
        _outcome_with_history().lasting(seconds)


async def test_ping_pong() -> None:
    plan = PerfPlan(pattern=Pattern.PING_PONG, size=64, seconds=0.0, total_bytes=6400)
    async with ends() as (client, _):
        result = await client.run(plan)
    assert result.client.messages == 100 and result.client.latency.count == 100
    assert 0 < result.client.latency.p50_ns <= result.client.latency.max_ns
    assert result.server is not None and result.server.messages == 100
    for end in (result.client, result.server):
        assert (end.total.received_bytes, end.total.written_bytes) == (6400, 6400)


async def test_plans__one_after_the_other() -> None:
    async with ends() as (client, outcomes):
        for size in (1, 4096, MIB):
            result = await client.run(PerfPlan(size=size, seconds=0.0, total_bytes=4 * size))
            assert result.client.messages == 4
    assert [outcome.total.received_bytes for outcome in outcomes] == [4, 16384, 4 * MIB]


async def test_interrupted__keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf_session, "LAST_WORDS_SECONDS", BUDGET_SECONDS)
    async with ends() as (client, outcomes):
        started = asyncio.Event()
        plan, on_interval = PerfPlan(size=4096, seconds=60.0), lambda _: started.set()
        running = spawn(client.run(plan, interval_seconds=0.05, on_interval=on_interval))
        await started.wait()
        running.cancel()
        result = await running
        assert result.interrupted and result.server is not None
        assert 0 < result.client.total.seconds < BUDGET_SECONDS
        assert result.client.total.written_bytes == result.server.total.received_bytes > 0
        assert (await client.run(PerfPlan(size=1, seconds=0.0, total_bytes=1))).client.messages == 1
    assert len(outcomes) == 2


async def test_server_vanishes() -> None:
    async with (
        mrc.open(loopback_config()) as near,
        listening_to_itself(private=SERVED) as (far, listener),
    ):
        server = PerfServer(far, lambda *_: None)
        serving: list[asyncio.Task[None]] = []
        qps = []

        async def serve() -> None:
            async for qp in listener:
                qps.append(qp)
                serving.append(spawn(server.serve(qp)))

        def abort(_: MeterInterval) -> None:
            for qp in qps:
                spawn(qp.abort())

        accepting, failed = spawn(serve()), list[Any]()
        with pytest.raises(PeerGoneError, match="ended without closing the connection"):
            async with connect(near, LOOPBACK[4], listener.port, timeout=BUDGET_SECONDS) as client:
                told: dict[str, Any] = {"on_interval": abort, "on_failed": failed.append}
                plan = PerfPlan(size=4096, seconds=60.0)
                await client.run(plan, interval_seconds=0.02, **told)
        (result,) = failed
        assert result.interrupted and result.server is None and result.intervals
        assert result.client.total.written_bytes == sum(i.written_bytes for i in result.intervals)
        await listener.close()
        await accepting
        await asyncio.gather(*serving, return_exceptions=True)


async def test_plan__that_needs_more_memory_than_the_server_has() -> None:
    """Each end needs twice the bytes written at a time; one host may have half of all memory."""
    async with ends(limits=Limits(max_peer_bytes=6 * MIB)) as (client, outcomes):
        refusal = r"no memory: 4194304 bytes are needed, \d+ are left.*--max-memory"
        with pytest.raises(PlanRefusedError, match=refusal):
            await client.run(PerfPlan(size=2 * MIB, depth=1, seconds=0.0, total_bytes=MIB))
        for _ in range(3):
            await client.run(PerfPlan(size=MIB, depth=1, seconds=0.0, total_bytes=MIB))
    assert len(outcomes) == 3


@pytest.mark.parametrize("wait", ["plan", "start"])
async def test_session__of_a_client_that_does_nothing(
    monkeypatch: pytest.MonkeyPatch, wait: str
) -> None:
    what = {"plan": "a plan", "start": "the start of its test"}[wait]
    patience = perf_session._patience

    def brief(session: MailboxSession, missing: str, seconds: float = 0.0) -> Any:
        idle = 0.1 if missing == what else BUDGET_SECONDS
        monkeypatch.setattr(perf_session, "IDLE_SECONDS", idle)
        return patience(session, missing, seconds)

    monkeypatch.setattr(perf_session, "_patience", brief)
    failures: list[str] = []
    monkeypatch.setattr(PerfServer, "serve", _told(failures, PerfServer.serve))
    async with ends() as (client, _):
        if wait == "start":
            hold = asyncio.Event()
            monkeypatch.setattr("mrc.perf.session.ClientTest.run", lambda *_: hold.wait())
            run = spawn(client.run(PerfPlan(size=4096, seconds=1.0)))
        while not failures:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if wait == "start":
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
    assert f"did not send {what} within 0.1 s" in failures[0]


def _told(failures: list[str], serve: Any) -> Any:
    async def told(server: PerfServer, qp: Any) -> None:
        try:
            await serve(server, qp)
        except MrcError as error:
            failures.append(str(error))

    return told


@pytest.mark.parametrize(
    ("number", "elapsed", "expected"),
    [(0, 0.0, 1), (1, 1.0001, 2), (1, 0.9999, 2), (1, 7.3, 8), (7, 7.95, 9), (3, 3.5, 4)],
)
def test_next_lap__a_process_that_stood_still(number: int, elapsed: float, expected: int) -> None:
    assert next_lap(number, elapsed, 1.0) == expected
    assert next_lap(number, elapsed / 20, 0.05) == expected


# ---- The command ---------------------------------------------------------------------------------


MB = 10**6


def latency(count: int, p50_ns: int) -> Latency:
    return Latency(count, p50_ns // 2, p50_ns, p50_ns, 2 * p50_ns, 3 * p50_ns, 4 * p50_ns)


def end(written: int, received: int, messages: int, found: Latency) -> PerfOutcome:
    there, back = {1: written}, {1: received}
    interval = MeterInterval(0.0, 2.0, written, received, 10, 1, 0, 0, 0.5, there, back)
    return PerfOutcome(interval, messages, found)


def result(plan: PerfPlan, client: PerfOutcome, server: PerfOutcome) -> Result:
    total = client.total
    halves = [
        replace(total, start_seconds=start, seconds=1.0, written_bytes=total.written_bytes // 2)
        for start in (0.0, 1.0)
    ]
    return Result(plan, client, server, tuple(halves), False)


def both_ways(size: int) -> Result:
    plan = PerfPlan(direction=PerfDirection.BOTH, size=size)
    client = end(100 * MB, 50 * MB, 200, latency(200, 3000))
    return result(plan, client, end(50 * MB, 100 * MB, 100, latency(100, 5000)))


def ping_pong(size: int) -> Result:
    plan = PerfPlan(pattern=Pattern.PING_PONG, size=size)
    client = end(2000, 2000, 1000, latency(1000, 7000))
    return result(plan, client, end(2000, 2000, 1000, NONE))


def setup() -> StartEvent:
    machine = PerfMachine(
        started_at="", host="h0", kernel="6", cpu=None, cpu_cores=2, arguments=("perf", "h1")
    )  # fmt: skip
    known = {"peer": "h1", "planes": (1,), "machine": machine, "schema": 1, "event": "start"}
    values: dict[str, Any] = dict.fromkeys(StartEvent.__struct_fields__) | known
    return StartEvent(**values)


def report_of(results: Sequence[Result], **options: bool) -> PerfReport:
    """The report of these tests, before it ends."""
    out = Output("mrc perf", quiet=True, **{"as_json": False, **options})
    report = PerfReport(out, [each.plan for each in results], stream=False)
    ctx: Any = SimpleNamespace(config=loopback_config())
    report.show(ctx, setup())
    for each in results:
        report.show(ctx, like(TestEvent, shown_of(each)))
    return report


def lines_of(result: Result, *, verbose: bool = False) -> list[str]:
    """The summary of a test."""
    return summary_lines(result.plan, shown_of(result), verbose=verbose)


def csv_of(results: Sequence[Result], capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    report_of(results, as_csv=True).end()
    return list(csv.DictReader(capsys.readouterr().out.splitlines()))


@pytest.mark.parametrize(("option", "use"), [(o, u) for both, u in INSTEAD.items() for o in both])
def test_run__options_of_iperf3_say_what_to_use(
    option: str, use: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["perf", "h1", option, "1M"]) == 2
    assert capsys.readouterr().err == f"mrc perf: {option} of iperf3: {use}; see mrc perf --help\n"


def test_run__csv_is_not_for_servers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perf", "--server", "--csv"]) == 2
    assert "--csv: only at the client" in capsys.readouterr().err


def test_interval_line__only_an_end_that_writes_retransmits() -> None:
    total = interval_of(end(100, 100, 1, NONE).total)
    assert "1 rtx" in interval_line(PerfPlan(), total)
    assert "rtx" not in interval_line(PerfPlan(direction=PerfDirection.REVERSE), total)


def test_sweep_table__each_direction_has_its_own_row() -> None:
    head, first, second, *_ = sweep_table([shown_of(both_ways(1024))]).split("\n")
    assert head.split()[:4] == ["MsgSize", "writer", "TotalOps", "BW_avg(Gbps)"]
    assert first.split() == ["1024", "client", "200", "0.400", "0.000100", "3.0", "6.0"]
    assert second.split() == ["1024", "server", "100", "0.200", "0.000050", "5.0", "10.0"]


def test_sweep_table__of_latency_says_that_it_is_half_a_round_trip() -> None:
    title, head, row = sweep_table([shown_of(ping_pong(2))]).split("\n")
    assert title == "half of each round trip:"
    assert head.split() == [
        "MsgSize", "RoundTrips", "min(us)", "p50(us)", "p99(us)", "p99.9(us)", "max(us)",
    ]  # fmt: skip
    assert row.split() == ["2", "1000", "3.5", "7.0", "14.0", "21.0", "28.0"]


def test_summary_lines__an_end_that_only_answers_has_no_latency() -> None:
    lines = lines_of(ping_pong(2))
    assert [line for line in lines if "p50" in line] == [
        "half RTT   p50 7 us  p99 14 us  p99.9 21 us  max 28 us  (1000 samples)"
    ]
    assert "returned   1000 messages of 2 B, 500 a second" in lines


def test_summary_lines__an_end_that_only_receives_tells_no_packets_sent() -> None:
    client, server = end(100 * MB, 0, 100, latency(100, 3000)), end(0, 100 * MB, 0, NONE)
    silent = replace(server.total, sent_packets=0, retransmitted_packets=0)
    lines = lines_of(result(PerfPlan(), client, PerfOutcome(silent, 0, NONE)))
    assert "; 10 data packets sent, of which 1 retransmission (0 B)" in lines[-2]
    assert lines[-1].startswith("server ") and "sent" not in lines[-1]


def test_summary_lines__what_an_end_waits_for() -> None:
    client, server = end(100 * MB, 0, 100, latency(100, 3000)), end(0, 100 * MB, 0, NONE)
    waits = SendWaits(peer_seconds=0.5, network_seconds=1.5)
    client = replace(client, total=replace(client.total, waits=waits))
    lines = lines_of(result(PerfPlan(), client, server), verbose=True)
    assert lines[-2].strip() == "held by the peer's window 25%, congestion windows 75%"
    assert not any("held by" in line for line in lines_of(result(PerfPlan(), client, server)))


def test_csv__a_line_for_each_interval(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = csv_of([both_ways(1024)], capsys)
    assert (first["start_seconds"], second["start_seconds"]) == ("0.0", "1.0")
    assert first["message_bytes"] == "1024" and first["written_bits_per_second"] == "400000000.0"
    assert first["planes.1.sent_bytes"] == "100000000"


def test_fail__prints_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of([both_ways(1024)], as_json=True)
    assert report.fail(PathError("all paths were lost")) == 4
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert (found["error"], found["exit_code"]) == ("all paths were lost", 4)
    assert len(found["results"][0]["intervals"]) == 2
    assert printed.err == "mrc perf: all paths were lost\n"


def test_sweep_table__a_test_that_failed_at_once() -> None:
    both = both_ways(1024)
    client = replace(both.client, total=replace(both.client.total, seconds=0.0))
    assert "1024" in sweep_table([shown_of(replace(both, client=client))])


@pytest.mark.parametrize("sizes", [[2], [2, 4]])
def test_csv__a_line_for_each_end_of_a_test(
    sizes: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = csv_of([ping_pong(size) for size in sizes], capsys)
    assert [(int(row["message_bytes"]), row["end"]) for row in rows] == [
        (size, name) for size in sizes for name in ("client", "server")
    ]
    assert rows[0]["latency_of"] == "half round trip" and rows[0]["latency.p50_ns"] == "7000"
    assert rows[1]["latency.p50_ns"] == ""


# ---- Histograms ----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_histogram__percentiles(durations: list[int], fraction: float) -> None:
    histogram = Histogram()
    for duration in durations:
        histogram.add(duration)
    wanted = fraction * len(durations)
    exact = next(value for seen, value in enumerate(sorted(durations), 1) if seen >= wanted)
    found = histogram.percentile(fraction)
    assert exact <= found <= exact + exact // 64


def test_histogram__summary() -> None:
    histogram = Histogram()
    assert histogram.summary() == Latency(0, 0, 0, 0, 0, 0, 0)
    for duration in range(1, 101):
        histogram.add(duration)
    assert histogram.summary() == Latency(100, 1, 50, 50, 99, 100, 100)


def test_histogram__size_is_bounded() -> None:
    histogram = Histogram()
    rng = random.Random(1)
    for _ in range(20000):
        histogram.add(rng.randrange(1 << rng.randrange(1, 40)))
    assert len(histogram._buckets) <= 40 * 64
