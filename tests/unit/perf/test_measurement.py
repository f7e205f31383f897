# SPDX-License-Identifier: Apache-2.0
"""Measurements by programs: `mrc.perf.measure` and `mrc.perf.serve` over loopback."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from endpoints import BUDGET_SECONDS, LOOPBACK, loopback_config, spawn

import mrc.perf
import mrc.results
from mrc import ArgumentError, ConnectError, PeerGoneError, StateError
from mrc.cli.main import build_parser
from mrc.connect.parse import host_and_port
from mrc.perf import measurement
from mrc.perf.cli import NAMES, _plans
from mrc.perf.load import PerfPlan
from mrc.perf.measurement import SECONDS, SWEEP_SECONDS, run
from mrc.perf.session import PerfServer
from mrc.units import digits

CONFIG = loopback_config()


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[mrc.perf.Server, str]]:
    """A server, and its target."""
    config = None if "context" in options else CONFIG
    async with mrc.perf.serve(LOOPBACK[4], 0, config=config, **options) as server:
        yield server, f"{LOOPBACK[4]}:{server.port}"


def pairs(table: Any, prefix: str = "") -> dict[str, object]:
    """As pandas.json_normalize: the columns of one row."""
    columns: dict[str, object] = {}
    for key, value in table.items():
        inner = (
            pairs(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
        columns |= inner
    return columns


async def test_measure__two_contexts_of_one_program() -> None:
    seen: list[Any] = []
    served: list[mrc.perf.PerfServed] = []
    async with (
        mrc.open(CONFIG) as there,
        mrc.open(CONFIG) as here,
        serving(context=there, on_served=served.append) as (server, target),
    ):
        assert server.context is there
        result = await mrc.perf.measure(
            target, seconds=0.2, size=4096, interval_seconds=0.05, context=here,
            progress=seen.append,
        )  # fmt: skip
        again = await mrc.perf.measure(target, total_bytes=8192, size=4096, context=here)
    (test,), (short,) = result.results, again.results
    assert test.client.written_bytes == served[0].server.received_bytes > 0
    assert (short.client.messages, served[1].server.received_bytes) == (2, 8192)
    assert served[0].plan == test.plan and result.machine.arguments == ()
    start, *intervals, end = seen
    assert isinstance(start, mrc.perf.StartEvent) and start.peer == result.peer
    assert isinstance(end, mrc.perf.TestEvent) and end.client == test.client
    assert [pairs(each.to_dict()) for each in intervals] == [
        pairs(each.to_dict()) | {"result": "IntervalEvent", "schema": 1, "event": "interval"}
        for each in test.intervals
    ]


async def test_measure__its_result_travels_and_makes_a_table() -> None:
    async with serving() as (_, target):
        results = [
            await mrc.perf.measure(target, total_bytes=1 << 16, size=size, qps=2, config=CONFIG)
            for size in (1 << 10, 1 << 14)
        ]
    for result in results:
        assert mrc.results.load(json.dumps(result.to_dict())) == result
        assert pickle.loads(pickle.dumps(result)) == result
    table = [pairs(test.to_dict()) for result in results for test in result.results]
    assert [row["plan.message_bytes"] for row in table] == [1 << 10, 1 << 14]
    assert all(row["client.latency.p50_ns"] for row in table)


@pytest.mark.parametrize(
    ("options", "pattern", "direction"),
    [
        ({"reverse": True}, "stream", "reverse"),
        ({"bidirectional": True}, "stream", "both"),
        ({"latency": True}, "ping-pong", "forward"),
    ],
)
async def test_measure__what_is_written_where(
    options: dict[str, bool], pattern: str, direction: str
) -> None:
    async with serving() as (_, target):
        result = await mrc.perf.measure(target, total_bytes=1 << 12, size=512, config=CONFIG,
                                        **options)  # type: ignore[arg-type]  # fmt: skip
    (test,) = result.results
    assert (test.plan.pattern, test.plan.direction) == (pattern, direction)
    assert test.server is not None
    assert test.client.written_bytes == (0 if direction == "reverse" else 1 << 12)
    assert test.server.written_bytes == (0 if not any(options.values()) else 1 << 12)


async def test_measure__a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "SWEEP_SIZES", (2, 4))
    async with serving() as (_, target):
        found = await mrc.perf.measure(target, sweep=True, seconds=0.01, config=CONFIG)
    assert [test.plan.message_bytes for test in found.results] == [2, 4]


WRONG = [
    ({"seconds": 1, "total_bytes": 1}, "seconds and total_bytes: "),
    ({"reverse": True, "bidirectional": True}, "reverse and bidirectional: "),
    ({"sweep": True, "size": 1}, "sweep: "),
    ({"sweep": True, "bin_ns": 1000}, "bin_ns: "),
    ({"latency": True, "qps": 2}, "latency: "),
    ({"seconds": -1}, "seconds: "),
    ({"total_bytes": -1}, "total_bytes: "),
    ({"total_bytes": 0}, "seconds, total_bytes: "),
    ({"size": 1.5}, "size: "),
    ({"depth": 0}, "depth: "),
    ({"interval_seconds": 0.0}, "interval_seconds: "),
    ({"interval_seconds": float("nan")}, "interval_seconds: "),
    ({"target": ""}, "target: "),
    ({"target": "h1:x"}, "target: "),
]


@pytest.mark.parametrize(("options", "why"), WRONG)
async def test_measure__refuses_wrong_arguments(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        await mrc.perf.measure(**{"target": "h1", **options})
    assert str(refused.value).startswith(why)


async def test_measure__a_context_or_a_config() -> None:
    async with mrc.open(CONFIG) as ctx:
        with pytest.raises(ArgumentError, match="context and config: "):
            await mrc.perf.measure("h1", context=ctx, config=CONFIG)
        with pytest.raises(ArgumentError, match="context and config: "):
            await mrc.perf.serve(context=ctx, config=CONFIG)


def test_plans__the_command_and_the_library_agree() -> None:
    args = build_parser().parse_args(["perf", "h1", "--lat", "-t", "3", "-O", "1", "--bins"])
    asked = {"omit_seconds": 1.0, "latency": True, "seconds": 3.0, "bin_ns": 1_000_000}
    rest: dict[str, Any] = dict.fromkeys(NAMES) | {"qps": 1, "bin_ns": 0}
    assert _plans(args) == measurement.plans(**rest | asked)
    args = build_parser().parse_args(["perf", "h1", "-a", "-n", "1G"])
    with pytest.raises(ArgumentError, match=r"^-a: .* neither --size nor -n with it"):
        _plans(args)


def test_help__has_the_defaults_of_measure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["perf", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert f"duration of the test [{digits(SECONDS)}; {digits(SWEEP_SECONDS)} for each" in told


async def test_measure__nobody_serves() -> None:
    seen: list[object] = []
    with pytest.raises(ConnectError, match="no program listens"):
        await mrc.perf.measure(f"{LOOPBACK[4]}:1", config=CONFIG, progress=seen.append)
    assert seen == []


async def test_measure__a_server_that_closes() -> None:
    """`progress` has got what was measured until then."""
    seen: list[Any] = []

    def show(event: object) -> None:
        seen.append(event)
        if isinstance(event, mrc.perf.IntervalEvent):
            closing.append(spawn(server.close()))

    closing: list[asyncio.Task[None]] = []
    async with serving() as (server, target):
        with pytest.raises(PeerGoneError):
            await mrc.perf.measure(
                target, seconds=60, config=CONFIG, interval_seconds=0.05, progress=show
            )
        await asyncio.gather(*closing)
    last = seen[-1]
    assert isinstance(last, mrc.perf.TestEvent) and last.interrupted
    assert last.client.written_bytes > 0


@pytest.mark.parametrize("timed", [False, True])
async def test_measure__is_cancelled(timed: bool) -> None:
    seen: list[Any] = []
    failed: list[object] = []
    begun, limit = asyncio.Event(), asyncio.timeout(None)

    def show(event: object) -> None:
        seen.append(event)
        if isinstance(event, mrc.perf.IntervalEvent) and not begun.is_set():
            begun.set()
            if timed:
                limit.reschedule(0)

    async def measure() -> None:
        async with limit:
            await mrc.perf.measure(
                target, seconds=600, config=CONFIG, interval_seconds=0.05, progress=show
            )

    async with serving(on_failed=lambda *told: failed.append(told)) as (_, target):
        measuring = spawn(measure())
        await begun.wait()
        if not timed:
            measuring.cancel()
        with pytest.raises(TimeoutError if timed else asyncio.CancelledError):
            await measuring
    assert isinstance(seen[-1], mrc.perf.TestEvent) and seen[-1].interrupted
    assert failed == []  # the server was told of the end


async def test_run__of_a_command_returns_what_was_measured() -> None:
    begun = asyncio.Event()

    def show(event: object) -> None:
        if isinstance(event, mrc.perf.IntervalEvent):
            begun.set()

    async with serving() as (_, target), mrc.open(CONFIG) as ctx:
        running = spawn(
            run(
                ctx, host_and_port(target), [PerfPlan(seconds=600.0)], interval_seconds=0.05,
                timeout=BUDGET_SECONDS, arguments=("perf", "h1"), progress=show,
            )
        )  # fmt: skip
        await begun.wait()
        running.cancel()
        found = await running
    assert found.results[0].interrupted and found.results[0].client.written_bytes > 0
    assert found.machine.arguments == ("perf", "h1")


@pytest.mark.parametrize("kind", ["StartEvent", "IntervalEvent", "TestEvent"])
async def test_measure__progress_that_fails_ends_it(kind: str) -> None:
    def show(event: object) -> None:
        if type(event).__name__ == kind:
            raise KeyError(kind)

    async with serving(on_failed=lambda *_: None) as (_, target):
        with pytest.raises(KeyError, match=kind):
            await mrc.perf.measure(
                target, seconds=60 if kind == "IntervalEvent" else 0.1, config=CONFIG,
                interval_seconds=0.05, progress=show,
            )  # fmt: skip


async def test_serve__one_off() -> None:
    async with serving(one_off=True) as (server, target):
        await mrc.perf.measure(target, total_bytes=1, size=1, config=CONFIG)
        assert await server.until_closed() is None


async def test_serve__tells_of_a_session_that_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = mrc.MrcError("no disk")

    async def fail(*_: object) -> None:
        raise wrong

    monkeypatch.setattr(PerfServer, "_serve_session", fail)
    failed: list[Exception] = []
    for on_failed in (lambda _, error: failed.append(error), None):
        with caplog.at_level(logging.WARNING, "mrc.perf"):
            async with serving(one_off=True, on_failed=on_failed) as (server, target):
                with pytest.raises(PeerGoneError, match="no disk"):
                    await mrc.perf.measure(target, total_bytes=1, size=1, config=CONFIG)
                assert await server.until_closed() is wrong
    assert failed == [wrong]
    assert [record.getMessage().endswith("failed: no disk") for record in caplog.records] == [True]


async def test_serve__closes_what_it_has_opened() -> None:
    server = await mrc.perf.serve(LOOPBACK[4], 0, config=CONFIG)
    await server.close()
    await server.close()
    assert await server.until_closed() is None
    with pytest.raises(StateError, match="closed"):
        server.context.register(b"a")
    async with mrc.open(CONFIG) as ctx, mrc.perf.serve(LOOPBACK[4], 0, context=ctx) as server:
        await server.close()
        async with ctx.register(b"a"):
            pass


async def test_serve__a_port_that_is_taken() -> None:
    async with serving() as (server, _):
        with pytest.raises(mrc.InUseError, match=str(server.port)):
            await mrc.perf.serve(LOOPBACK[4], server.port, config=CONFIG)


def test_names__of_the_package() -> None:
    for name in mrc.perf.__all__:
        assert getattr(mrc.perf, name).__name__ == name
    with pytest.raises(AttributeError, match=r"'mrc\.perf' has no attribute 'Meter'"):
        mrc.perf.Meter  # type: ignore[attr-defined]  # noqa: B018


async def test_measure__a_target_that_is_no_text() -> None:
    measure: Any = mrc.perf.measure
    with pytest.raises(ArgumentError, match=r"^target: must be a string, not"):
        await measure(5)
