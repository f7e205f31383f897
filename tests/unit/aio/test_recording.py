# SPDX-License-Identifier: Apache-2.0
"""Payload over time: recordings of a Context, the history of a test, and how it is shown."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from endpoints import (
    BUDGET_SECONDS,
    connected_pair,
    loopback_config,
    memory,
    set_port,
    spawn,
    two_planes,
    until,
)
from msgspec.structs import replace
from unit.perf.test_perf import ends

import mrc
from mrc import ArgumentError, InUseError, ProtocolError, StateError, limits
from mrc.aio.recording import Recording
from mrc.cli.figures import bins, bins_lines
from mrc.engine.engine import Notice
from mrc.enums import EventReason, EventType
from mrc.perf.load import Pattern, PerfDirection, PerfPlan
from mrc.perf.measurement import changes
from mrc.perf.measurement import test_of as shown_of
from mrc.perf.meter import History, Meter, PeerBins
from mrc.perf.report import MAX_LINES, change_lines, summary_lines
from mrc.perf.results import EvChange, PlaneChange, ShareChange
from mrc.perf.session import PlanRefusedError, connect
from mrc.results import plain
from mrc.typed import take

MS = 1_000_000
KIB = 1 << 10
RECORDING = Recording(
    start_monotonic_ns=10**12,
    duration_ns=4 * MS,
    width_ns=MS,
    planes={1: (5, 0, 0, 1), 2: (7, 0, 2, 3)},
    first_ns=100,
    last_ns=3 * MS,
    longest_gap_ns=2 * MS - 100,
    longest_gap_at_ns=100,
)
HISTORY = History(
    RECORDING,
    (EvChange(MS, 77, 2, "t1:2.0", "GOOD", "ASSUMED_BAD", "LOSS"),),
    (PlaneChange(2 * MS, 77, 2, True, "SILENCE"),),
    (ShareChange(3 * MS, 77, 1, True, 9, "DELIVERY"),),
    3,
)

# ---- a test's -------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", PerfDirection)
async def test_plan__both_ends_tell_their_history(direction: PerfDirection) -> None:
    size = 4 << 20
    plan = PerfPlan(
        direction=direction, size=65536, seconds=0.0, total_bytes=size, bin_ns=MS, qps=2
    )
    async with ends() as (client, outcomes):
        result = await client.run(plan)
    assert result.server is not None and result.server == outcomes[0]
    shown = plain(shown_of(result))
    for name, receives in (("client", plan.client_receives), ("server", plan.server_receives)):
        history = getattr(result, name).history
        assert sum(history.recording.bytes) == (size if receives else 0)
        assert (shown[name]["bins"] is not None) == receives
        assert shown[name]["changes"]["evs"] == []
    charts = [
        line
        for line in summary_lines(result.plan, shown_of(result))
        if line.startswith("goodput at the")
    ]
    assert len(charts) == plan.client_receives + plan.server_receives


async def test_history__a_plane_that_becomes_slow() -> None:
    async with (
        connected_pair(**two_planes()) as pair,
        Meter(pair.near_context, [pair.near], bin_ns=MS) as meter,
    ):
        at_ns = time.monotonic_ns()
        notice = Notice(EventType.PLANE_SHARE, 0, 0, 2, 0, EventReason.DELIVERY, at_ns, 9)
        pair.near._on_notice(notice)

        async def told() -> bool:
            return bool(meter._changes[ShareChange])

        await until(told)
        history = await meter.history()
        assert history is not None
    (change,) = history.shares
    assert (change.qpn, change.plane, change.slow, change.percent) == (pair.near.qpn, 2, True, 9)
    assert change.reason == "DELIVERY"
    assert change.at_ns == at_ns - history.recording.start_monotonic_ns
    assert changes(history).shares == (change,)


async def test_plan__without_bins_nothing_is_recorded() -> None:
    async with ends() as (client, _):
        result = await client.run(PerfPlan(size=KIB, seconds=0.0, total_bytes=KIB))
    assert result.client.history is None
    assert shown_of(result).client.bins is None


async def test_plan__history_begins_behind_what_is_omitted() -> None:
    plan = PerfPlan(Pattern.PING_PONG, size=64, seconds=0.1, omit_seconds=0.1, bin_ns=MS)
    before_ns = time.monotonic_ns()
    async with ends() as (client, _):
        result = await client.run(plan)
    assert result.client.history is not None
    recording, total = result.client.history.recording, result.client.total
    assert recording.start_monotonic_ns - before_ns > 100 * MS
    assert recording.duration_ns >= total.seconds * 1e9  # it was begun before, and ended after
    assert sum(recording.bytes) >= total.received_bytes > 0


async def test_server__one_history_at_a_time() -> None:
    plan = PerfPlan(size=KIB, seconds=60.0, bin_ns=MS)
    async with ends() as (first, _), mrc.open(loopback_config()) as context:
        started = asyncio.Event()
        running = spawn(first.run(plan, interval_seconds=0.01, on_interval=lambda _: started.set()))
        await started.wait()
        async with connect(context, first.host, first.port, timeout=BUDGET_SECONDS) as second:
            with pytest.raises(PlanRefusedError, match="one recording at a time"):
                await second.run(plan)
            assert (await second.run(replace(plan, bin_ns=0, seconds=0.01))).client.messages > 0
        running.cancel()
        result = await running
    assert result.interrupted and result.server is not None
    assert result.server.history is not None and any(result.server.history.recording.bytes)


async def test_history__changes_with_their_time() -> None:
    async with (
        connected_pair(**two_planes()) as pair,
        Meter(pair.near_context, [pair.near], bin_ns=MS) as meter,
    ):
        before_ns = time.monotonic_ns()
        await set_port(pair.near_context, 2, up=False)
        await pair.near.deny(0)

        async def both_told() -> bool:
            await pair.near.info()
            return bool(meter._changes[EvChange] and meter._changes[PlaneChange])

        await until(both_told)
        history = await meter.history()
        assert history is not None
    start_ns = history.recording.start_monotonic_ns
    (plane,) = history.planes
    assert (plane.plane, plane.suspended, plane.reason) == (2, True, "OWN_PORT")
    change = next(each for each in history.evs if each.reason == "CONTROLLER")
    assert (change.old, change.new, change.plane) == ("GOOD", "DENIED", 1)
    assert before_ns - start_ns < plane.at_ns <= change.at_ns < history.recording.duration_ns


def test_history__travels() -> None:
    bins = PeerBins()
    for plane, numbers in HISTORY.pieces():
        bins.add(plane, list(numbers))
    assert take(HISTORY.to_dict(), History).completed(bins.planes) == HISTORY


def test_history__pieces_are_small() -> None:
    long = replace(HISTORY, recording=replace(RECORDING, planes={1: tuple(range(limits.MAX_BINS))}))
    pieces = list(long.pieces())
    assert max(len(bins) for _, bins in pieces) <= 16384
    assert [number for _, bins in pieces for number in bins] == list(range(limits.MAX_BINS))


@pytest.mark.parametrize(
    ("plane", "numbers"),
    [(0, [1]), (33, [1]), ("1", [1]), (True, [1]), (1, [-1]), (1, ["1"]), (1, None), (1, [1.5])],
)
def test_bins__nonsense_of_the_peer(plane: Any, numbers: Any) -> None:
    with pytest.raises(ProtocolError, match="bins"):
        PeerBins().add(plane, numbers)


def test_bins__no_more_than_there_can_be() -> None:
    bins = PeerBins()
    bins.add(1, [0] * limits.MAX_BINS)
    with pytest.raises(ProtocolError, match="more bins"):
        bins.add(1, [0])


# ---- shown ----------------------------------------------------------------------------------


def test_bins__sums_planes() -> None:
    shown = plain(bins(RECORDING))
    assert shown["bytes"] == [12, 0, 2, 4]
    assert shown["planes"][1] == {"plane": 2, "bytes": [7, 0, 2, 3]}
    assert (shown["longest_gap_ns"], shown["longest_gap_at_ns"]) == (2 * MS - 100, 100)


def test_bins_lines__goodput_and_gap() -> None:
    lines = bins_lines("server", RECORDING)
    assert lines == [
        "goodput at the server, 4 bins of 1 ms: 36 kbit/s on average, 96 kbit/s at most",
        "longest gap 2 ms, from 0.000000 s on",
    ]
    silent = replace(RECORDING, duration_ns=10**9, last_ns=MS)
    assert bins_lines("server", silent)[-1] == "nothing arrived in the last 999 ms"
    nothing = replace(RECORDING, planes={1: (0, 0)})
    assert bins_lines("client", nothing) == ["client: nothing arrived"]


def test_change_lines__in_order_and_not_too_many() -> None:
    lines = change_lines("server", changes(replace(HISTORY, lost_changes=0)))
    assert [line.split("  ", 1)[1].strip() for line in lines] == [
        "0.001000 s  t1:2.0: GOOD to ASSUMED_BAD, LOSS",
        "0.002000 s  plane 2 suspended, SILENCE",
        "0.003000 s  plane 1 slow, DELIVERY: carries 9% of the others",
    ]
    assert change_lines("server", changes(HISTORY))[-1].endswith(" 3 more changes: see --json")
    (ev,) = HISTORY.evs
    paths = tuple(replace(ev, path=f"t1:{plane}.0") for plane in range(3, 103))
    many = replace(HISTORY, evs=paths)
    assert len(change_lines("server", changes(many))) == MAX_LINES + 1
    assert change_lines("server", changes(many))[-1].endswith("93 more changes: see --json")


def test_change_lines__the_same_change_is_one_line() -> None:
    """Of an EV that flaps, and of a plane that each of 16 QPs suspends."""
    (ev,), (plane,) = HISTORY.evs, HISTORY.planes
    flaps = tuple(replace(ev, at_ns=ev.at_ns + i * MS) for i in range(3))
    back = replace(ev, old=ev.new, new=ev.old, reason="FLOOR", at_ns=ev.at_ns + MS // 2)
    planes = tuple(replace(plane, qpn=qpn, at_ns=plane.at_ns + qpn * MS) for qpn in range(16))
    same = replace(HISTORY, evs=(*flaps, back), planes=planes, shares=(), lost_changes=0)
    assert [line.split("  ", 1)[1].strip() for line in change_lines("client", changes(same))] == [
        "0.001000 s  t1:2.0: GOOD to ASSUMED_BAD, LOSS (3 times, until 0.003000 s)",
        "0.001500 s  t1:2.0: ASSUMED_BAD to GOOD, FLOOR",
        "0.002000 s  plane 2 suspended, SILENCE (16 times by 16 QPs, until 0.017000 s)",
    ]


# ---- Recordings of a Context ---------------------------------------------------------------------


async def test_record__what_arrived_when() -> None:
    async with connected_pair(**two_planes()) as pair:
        target = bytearray(64 * KIB)
        async with memory(pair, bytes(64 * KIB), target) as (source, there):
            await pair.near.write(source, there.handle)  # before the recording
            before_ns = time.monotonic_ns()
            async with pair.far_context.record([pair.far], width_ns=10 * MS) as recorder:
                await pair.near.write(source, there.handle)
                between_ns = time.monotonic_ns()
                await pair.near.write(source[:10], there.handle)
                recording = await recorder.stop()
                await pair.near.write(source, there.handle)  # after the recording
    assert before_ns < recording.start_monotonic_ns < between_ns
    assert recording.width_ns == 10 * MS and recording.planes.keys() == {1, 2}
    assert sum(recording.bytes) == 64 * KIB + 10
    assert len(recording.bytes) == recording.duration_ns // (10 * MS) + 1
    assert recording.first_ns is not None and recording.last_ns is not None
    assert recording.longest_gap_at_ns is not None
    end_ns = recording.longest_gap_at_ns + recording.longest_gap_ns
    assert 0 < recording.first_ns <= recording.longest_gap_at_ns < end_ns <= recording.last_ns
    assert recording.last_ns < recording.duration_ns
    assert recording.start_monotonic_ns + recording.last_ns > between_ns


async def test_record__other_qps_do_not_count() -> None:
    async with connected_pair() as pair:
        target = bytearray(KIB)
        async with (
            await pair.near_context.connect("127.0.0.1", pair.listener.port) as other,
            await pair.listener.accept() as accepted,
            memory(pair, bytes(KIB), target) as (source, there),
            pair.far_context.record([accepted]) as recorder,
        ):
            await pair.near.write(source, there.handle)
            await other.write(source[:100], there.handle)
            assert sum((await recorder.stop()).bytes) == 100
        assert (await pair.far_context.counters())["RX_RECORDED"] == 100


async def test_record__all_qps_also_those_that_come() -> None:
    async with connected_pair(**two_planes()) as pair, pair.far_context.record() as recorder:
        target = bytearray(KIB)
        async with (
            await pair.near_context.connect("127.0.0.1", pair.listener.port) as other,
            await pair.listener.accept(),
            memory(pair, bytes(KIB), target) as (source, there),
        ):
            await pair.near.write(source, there.handle)
            await other.write(source[:100], there.handle)
        recording = await recorder.stop()
    assert recording.planes.keys() == {1, 2}
    assert sum(recording.bytes) == KIB + 100


async def test_record__nothing_came() -> None:
    async with connected_pair() as pair:
        recorder = await pair.far_context.record([pair.far])
        recording = await recorder.stop()
        assert await recorder.stop() == recording
        for _ in range(2):
            await recorder.close()
        assert await recorder.stop() == recording
    assert not any(recording.bytes)
    assert (recording.first_ns, recording.last_ns, recording.longest_gap_at_ns) == (None,) * 3


async def test_record__one_at_a_time_and_of_open_qps() -> None:
    async with connected_pair() as pair:
        with pytest.raises(ArgumentError, match="width_ns: 999"):
            pair.far_context.record([pair.far], width_ns=999)
        with pytest.raises(ArgumentError, match="qps: is empty"):
            pair.far_context.record([])
        async with pair.far_context.record([pair.far]):
            with pytest.raises(InUseError, match="one recording at a time"):
                await pair.far_context.record([pair.far])
        async with pair.far_context.record([pair.far]) as recorder:
            await recorder.stop()
        await pair.far.close()
        with pytest.raises(StateError):
            await pair.far_context.record([pair.far])
        assert pair.far_context._opened().dispatcher.recording is None


async def test_record__ends_with_its_context() -> None:
    async with connected_pair() as pair, pair.far_context.record([pair.far]) as recorder:
        await pair.far_context.close()
        with pytest.raises(StateError):
            await recorder.stop()
