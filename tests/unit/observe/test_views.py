# SPDX-License-Identifier: Apache-2.0
"""The views of a Context: its observer, metrics over HTTP, and who has a place."""

from __future__ import annotations

import asyncio
import re
import socket
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
from endpoints import (
    BUDGET_SECONDS,
    LOOPBACK,
    connected_pair,
    loopback_config,
    transfer,
    two_planes,
    until,
)
from file_commands import listening
from msgspec.structs import replace
from project_text import ROOT
from prometheus_client.openmetrics import parser as open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from slowness import PATIENCE
from unit.transfer.test_session import INFO, PLANE

import mrc
from mrc import QP, Context, InUseError, Opening, ResolveError
from mrc.cli.arguments import listening_address
from mrc.connect import admission, remote_view
from mrc.connect.admission import PATIENCE_SECONDS, Visits
from mrc.connect.dial import dial
from mrc.connect.remote_view import RemoteView
from mrc.engine.native import names_of
from mrc.errors import ConnectError, ProtocolError
from mrc.events import QpInfo
from mrc.observe import snapshot, views
from mrc.observe.metrics import COUNTERS, Scrape
from mrc.observe.views import MAX_REQUESTS, MetricsServer


class Noted:
    """An observer that records the reports."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.metrics_port = 0

    async def open(self, ctx: Context) -> None:
        self.told.append(f"open of {ctx.name}")

    def adopt(self, qp: QP) -> Callable[[QpInfo | None], None]:
        self.told.append(f"adopt {qp.peer.name}")
        return self.retire

    def retire(self, info: QpInfo | None) -> None:
        assert info is not None and info.first_sent_bytes == 0
        self.told.append("retire")

    def viewers(self) -> RemoteView:
        return RemoteView(None)

    def forget(self) -> None:
        self.told.append("forget")

    async def close(self) -> None:
        self.told.append("close")


def opening(observer: Noted | None, **options: Any) -> Opening[Context]:
    return Opening(Context(loopback_config(**options), observer=observer)._open())


@pytest.mark.parametrize("given", [False, True])
async def test_observer__shows_nothing_unless_the_configuration_says_so(given: bool) -> None:
    """A given observer replaces the views of the configuration."""
    views_of: dict[str, Any] = {"metrics": (LOOPBACK[4], 0), "remote_view": True} if given else {}
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        opening(Noted() if given else None, **views_of) as context,
        context.listen(LOOPBACK[4], 0) as listener,
    ):
        assert context.metrics_port == 0
        channel = await dial(None, LOOPBACK[4], listener.port)
        with pytest.raises(ConnectError, match="remote viewing is off"):
            await remote_view.look_at_peer(channel)
        await channel.close()


async def test_observer__a_given_one_is_told_of_everything_in_order() -> None:
    noted = Noted()
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        opening(noted) as near,
        mrc.open(loopback_config()) as far,
        far.listen(LOOPBACK[4], 0) as listener,
        near.connect(LOOPBACK[4], listener.port),
    ):
        begin = [f"open of {near.name}", f"adopt {far.name}"]
        assert noted.told == begin
    assert noted.told == [*begin, "retire", "close"]


# ---- Views whose program does not answer ------------------------------------------------------


@pytest.fixture
async def complaints() -> list[dict[str, Any]]:
    """What asyncio would print, with a traceback."""
    found: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    return found


class Stopped:
    """A program that has been asked and does not answer."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def show(self, *_: object) -> NoReturn:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


async def test_local_view__closes(
    complaints: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "_homes", lambda: iter([tmp_path / "endpoints"]))
    monkeypatch.setattr(views, "_folders", lambda all_users: iter([tmp_path / "endpoints"]))
    program = Stopped()
    view = views.LocalView(program.show)
    async with asyncio.timeout(BUDGET_SECONDS):
        await view.open()
        looking = asyncio.create_task(views.look(views.sockets()[0]))
        await program.asked.wait()
        await view.close()
        with pytest.raises((ProtocolError, OSError)):
            await looking
    assert complaints == []


async def test_metrics__close(complaints: list[dict[str, Any]]) -> None:
    program = Stopped()
    server = MetricsServer(program.show)
    async with asyncio.timeout(BUDGET_SECONDS):
        await server.open("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        await program.asked.wait()
        await server.close()
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
    assert complaints == []


# ---- Metrics -------------------------------------------------------------------------------------


HERE = ("127.0.0.1", 0)
Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def ask(port: int, request: bytes) -> bytes:
    """The server's whole answer to one request."""
    reader, writer = await asyncio.open_connection(HERE[0], port)
    try:
        writer.write(request)
        return await reader.read()
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def page(context: Context, accept: str = "") -> str:
    request = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n"
    head, _, body = (await ask(context.metrics_port, request.encode())).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert f"Content-Length: {len(body)}" in head.decode()
    return body.decode()


async def scrape(context: Context) -> Values:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_text(await page(context))
        for sample in family.samples
    }


def value(values: Values, name: str, **labels: str) -> float:
    """The sum over the samples that have these labels."""
    found = [
        number
        for (other, its), number in values.items()
        if other == name and labels.items() <= dict(its).items()
    ]
    assert found, name
    return sum(found)


# ---- names ----------------------------------------------------------------------------------


def test_names__every_counter_has_one() -> None:
    assert list(COUNTERS) == names_of("counter")
    assert len(set(COUNTERS.values())) == len(COUNTERS)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*[a-z]", metric) for metric in COUNTERS.values())
    assert len(names_of("counter", "meaning")) == len(COUNTERS)


async def test_names__follow_the_conventions() -> None:
    async with connected_pair(metrics=HERE) as pair:
        await transfer(pair, bytes(1000))
        families = list(parse_text(await page(pair.near_context)))
    ours = [family for family in families if family.name.startswith("mrc_")]
    assert len(ours) > len(COUNTERS)
    for family in ours:
        assert family.documentation and family.type in ("counter", "gauge")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
            assert not re.search(r"_(ns|us|ms|bits|kib)\b", sample.name)
            assert "qp" not in sample.labels
    assert any(family.name == "process_cpu_seconds" for family in families)


async def test_alerts__name_metrics_and_labels_that_exist() -> None:
    text = (ROOT / "tools" / "alerts.yml").read_text()
    async with connected_pair(metrics=HERE) as pair:
        exist = await scrape(pair.near_context)
    named = set(re.findall(r"\bmrc_\w+", text))
    assert len(named) >= 6 and named <= {name for name, _ in exist}
    selected = set(re.findall(r'(\w+)="(\w+)"', text))
    assert selected == {("state", "assumed_bad")}
    assert selected <= {pair for _, labels in exist for pair in labels}
    grouped = {word for words in re.findall(r"by \((.*?)\)", text) for word in words.split(", ")}
    grouped |= set(re.findall(r"\$labels\.(\w+)", text))
    # The scraper adds the label "instance".
    assert grouped - {"instance"} <= {name for _, labels in exist for name, _ in labels}


# ---- values ---------------------------------------------------------------------------------


async def test_counters__grow_with_a_transfer_and_never_fall() -> None:
    async with connected_pair(**two_planes(metrics=HERE)) as pair:
        near, far, peer = pair.near_context, pair.far_context, pair.far_context.name
        await transfer(pair, bytes(100_000))
        first = await scrape(near)
        assert value(first, "mrc_peer_acknowledged_bytes_total", peer=peer) == 100_000
        assert value(first, "mrc_plane_sent_bytes_total", peer=peer) >= 100_000
        assert value(await scrape(far), "mrc_plane_received_bytes_total") == 100_000
        assert value(first, "mrc_qps", peer=peer, state="rts") == 1
        await transfer(pair, bytes(50_000))
        second = await scrape(near)
        assert value(second, "mrc_peer_acknowledged_bytes_total", peer=peer) == 150_000
        await pair.near.close()
        third = await scrape(near)
        async with (
            await near.connect(LOOPBACK[4], pair.listener.port),
            await pair.listener.accept(),
        ):
            fourth = await scrape(near)
    assert value(third, "mrc_peer_acknowledged_bytes_total", peer=peer) == 150_000
    assert not any(name == "mrc_qps" for name, _ in third)
    for before, after in ((first, second), (second, third), (third, fourth)):
        for key, number in before.items():
            if key[0].endswith("_total"):
                assert after[key] >= number, key


async def test_gauges__of_planes_and_evs() -> None:
    async with connected_pair(**two_planes(metrics=HERE)) as pair:
        await transfer(pair, bytes(100_000))
        await pair.near.deny(0)
        values = await scrape(pair.near_context)
    assert value(values, "mrc_evs", state="denied", plane="1") == 1
    assert value(values, "mrc_evs", state="assumed_bad") == 0
    assert value(values, "mrc_plane_suspended_qps", plane="2") == 0
    assert 0 < value(values, "mrc_plane_rtt_seconds", plane="1") < PATIENCE, "in seconds"
    assert value(values, "mrc_plane_share_ratio", plane="2") == 1
    assert value(values, "mrc_dropped_packets_total", reason="short") == 0
    assert len([name for name, _ in values if name == "mrc_path_rtt_seconds"]) > 0


def test_gauges__the_least_share_of_a_plane() -> None:
    infos = [replace(INFO, planes=(replace(PLANE, share_percent=percent),)) for percent in (100, 9)]
    reading = Scrape(
        "h0", Counter(), {}, snapshot.Totals(), [snapshot.OpenQp("h1", info, ()) for info in infos]
    )
    (gauge,) = [family for family in reading.collect() if family.name == "mrc_plane_share_ratio"]
    (sample,) = gauge.samples
    assert (sample.labels, sample.value) == ({"peer": "h1", "plane": "1"}, 0.09)


async def test_peers__beyond_the_limit_share_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_PEERS", 0)
    async with connected_pair(metrics=HERE) as pair:
        await transfer(pair, bytes(1000))
        values = await scrape(pair.near_context)
    assert value(values, "mrc_peer_acknowledged_bytes_total", peer="other") == 1000


async def test_page__open_metrics_for_who_accepts_it() -> None:
    async with mrc.open(loopback_config(metrics=HERE)) as context:
        text = await page(context, "application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")
    parse: Any = open_metrics.text_string_to_metric_families
    assert {"mrc_info", "mrc_tx_data_packets"} <= {family.name for family in parse(text)}


# ---- the server -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        (b"GET /metrics\r\n\r\n", "400 Bad Request"),
        (b"\x16\x03\x01 garbage\r\n\r\n", "400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20000, "431 Request Header Fields Too Large"),
        (b"GET /metrics?a=b HTTP/1.1\r\n\r\n", "200 OK"),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example:9464\r\n\r\n", "421 Misdirected Request"),
        (b"GET /metrics HTTP/1.1\r\nhost: LOCALHOST:9464\r\n\r\n", "200 OK"),
        (b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "200 OK"),
        (b"GET /metrics HTTP/1.1\r\nHost: [::1]:9464\r\n\r\n", "200 OK"),
    ],
)
async def test_server__answers(request_bytes: bytes, status: str) -> None:
    async with asyncio.timeout(BUDGET_SECONDS), mrc.open(loopback_config(metrics=HERE)) as context:
        answer = await ask(context.metrics_port, request_bytes)
    assert answer.startswith(f"HTTP/1.1 {status}\r\n".encode())


async def test_server__any_name_where_it_is_open_to_the_network() -> None:
    config = loopback_config(metrics=("0.0.0.0", 0))
    async with asyncio.timeout(BUDGET_SECONDS), mrc.open(config) as context:
        named = b"GET /metrics HTTP/1.1\r\nHost: h1.example\r\n\r\n"
        assert (await ask(context.metrics_port, named)).startswith(b"HTTP/1.1 200 OK")


async def test_server__not_too_many_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_GRACE_SECONDS", 1e6)  # the silent ones keep their places
    async with asyncio.timeout(BUDGET_SECONDS), mrc.open(loopback_config(metrics=HERE)) as context:
        silent = [
            await asyncio.open_connection(HERE[0], context.metrics_port)
            for _ in range(views.MAX_REQUESTS)
        ]
        with pytest.raises((ConnectionError, AssertionError)):
            await page(context)
        for _, writer in silent:
            writer.close()
            await writer.wait_closed()

        async def answers() -> bool:
            try:
                return bool(await page(context))
            except (ConnectionError, AssertionError):
                return False

        await until(answers)


async def test_server__a_silent_client_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "REQUEST_SECONDS", 0.05)
    async with asyncio.timeout(BUDGET_SECONDS), mrc.open(loopback_config(metrics=HERE)) as context:
        assert await ask(context.metrics_port, b"GET /metrics HTTP/1.1\r\n") == b""


async def test_server__port_and_address_that_cannot_be() -> None:
    async with mrc.open(loopback_config(metrics=HERE)) as context:
        taken = (HERE[0], context.metrics_port)
        with pytest.raises(InUseError, match=f"TCP port {context.metrics_port} is in use"):
            async with mrc.open(loopback_config(metrics=taken)):
                pass
    with pytest.raises(ResolveError, match=r"cannot listen on 192\.0\.2\.1"):
        async with mrc.open(loopback_config(metrics=("192.0.2.1", 0))):
            pass


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("[::]:0", ("::", 0)),
        ("::1", None),
        (":9464", None),
        ("x", None),
        ("127.0.0.1:", None),
    ],
)
def test_listening_address(text: str, address: Any) -> None:
    if address is None:
        with pytest.raises(ValueError, match=r"port number|is not PORT"):
            listening_address(text)
    else:
        assert listening_address(text) == address


def test_recv__serves_metrics(tmp_path: Path) -> None:
    with (
        listening("recv", "--metrics", "0", "--output", tmp_path) as (_, said, _),
        urllib.request.urlopen(said.splitlines()[0].split()[-1], timeout=PATIENCE) as answer,
    ):
        families = {family.name for family in parse_text(answer.read().decode())}
    assert "mrc_info" in families


# ---- Places of connections -----------------------------------------------------------------------
#
# The connections of a server that only answers.


async def test_visits__a_connection_that_came_just_before_the_end_gets_no_answer() -> None:
    answered = []

    async def answer(reader: asyncio.StreamReader, *_: object) -> None:
        answered.append(await reader.readline())

    visits = Visits(1, answer)
    ours, theirs = socket.socketpair()
    with ours:
        reader, writer = await asyncio.open_connection(sock=theirs)
        await visits.close(None)
        ours.shutdown(socket.SHUT_WR)
        await visits.on_connection(reader, writer)
        ours.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(ours, 1) == b"" and answered == []


async def test_visits__silent_connections_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_GRACE_SECONDS", 0.0)

    async def page(_: str) -> tuple[bytes, str]:
        return b"x 1\n", "text/plain"

    server = MetricsServer(page)
    async with asyncio.timeout(BUDGET_SECONDS):
        await server.open("127.0.0.1", 0)
        idle = [
            await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2 * MAX_REQUESTS)
        ]
        idle[-1][1].write(b"GET /metrics HT")  # half a request is none
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert (await reader.read()).endswith(b"x 1\n")
        for _, each in (*idle, (reader, writer)):
            each.close()
        await server.close()


@pytest.mark.parametrize(
    ("held", "newcomer", "gone"),
    [
        # source, whether it has asked, seconds since
        ([("10.0.0.1", True, 1), ("10.0.0.2", True, 2)], "10.0.0.3", None),
        ([("10.0.0.1", True, 1), ("10.0.0.1", True, 2)], "10.0.0.1", None),
        ([("10.0.0.1", True, 1), ("10.0.0.1", True, 2)], "10.0.0.3", 1),
        ([("10.0.0.1", True, 5), ("10.0.0.2", False, 1000)], "10.0.0.3", 1),
        ([("10.0.0.1", True, 5), ("10.0.0.2", False, 0)], "10.0.0.3", None),
        ([("10.0.0.1", True, 5), ("10.0.0.1", True, PATIENCE_SECONDS + 1)], "10.0.0.1", 1),
        ([("fd00::1", True, 1), ("fd00::2", True, 2)], "fd01::1", 1),  # one /64
    ],
)
async def test_visits__who_gives_its_place(
    held: list[tuple[str, bool, float]], newcomer: str, gone: int | None
) -> None:
    visits = Visits(len(held))
    now = asyncio.get_running_loop().time()
    tasks = [asyncio.create_task(asyncio.sleep(BUDGET_SECONDS)) for _ in held]
    for task, (address, has_asked, seconds) in zip(tasks, held, strict=True):
        visit = visits.admit(address)
        assert visit is not None
        visits.start(visit, task)
        if has_asked:
            visit.ask()
        visit.since = now - seconds
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "_GRACE_SECONDS", 500.0)
        assert (visits.admit(newcomer) is None) == (gone is None)
    await asyncio.sleep(0)
    assert [task.cancelled() for task in tasks] == [i == gone for i in range(len(held))]
    await visits.close(None)
