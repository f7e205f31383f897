# SPDX-License-Identifier: Apache-2.0
"""The route of a connect: hellos and attributes, attempts, names with several addresses; and over
a TCP connection with a long round trip.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import suppress
from functools import reduce
from ipaddress import ip_address, ip_interface
from operator import or_
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from endpoints import (
    BUDGET_SECONDS,
    LOOPBACK,
    Pair,
    connected_pair,
    joined,
    listening_to_itself,
    loopback_config,
    pattern,
    transfer,
    two_planes,
)
from meetings import host, waiting
from msgspec.structs import replace
from slowness import PATIENCE

import mrc
from mrc import CcKind, Context, EvState, Opening
from mrc.config import Timeouts, TrafficClasses
from mrc.connect import connect as route
from mrc.connect import dial as dialing
from mrc.connect import proof
from mrc.connect.connect import Terms
from mrc.connect.dial import dial
from mrc.connect.failures import about
from mrc.connect.identity import load
from mrc.connect.oob import Channel, CutOffError, Hello
from mrc.connect.proof import NoAnswerError, no_answer
from mrc.connect.security import Security
from mrc.engine.native import Command
from mrc.engine.queue_pair import QueuePair
from mrc.enums import SHARED_READINGS, Integrity, Reading
from mrc.errors import (
    BusyError,
    ConnectError,
    ConnectRefusedError,
    ConnectTimeoutError,
    Kind,
    MrcError,
    PathError,
    PeerGoneError,
    ProtocolError,
    ResolveError,
)
from mrc.fabric.hostconfig import HostConfig, HostPeer, IpAddress
from mrc.linux.namespace import numeric
from mrc.tasks import cancelled

FOREIGN = "127.0.0.77"  # no host answers here


@pytest.mark.parametrize("near", Integrity)
@pytest.mark.parametrize("far", Integrity)
async def test_integrity__the_stronger_of_both_sides(near: Integrity, far: Integrity) -> None:
    data = pattern(100_000)
    async with joined(loopback_config(integrity=near), loopback_config(integrity=far)) as pair:
        assert await transfer(pair, data) == data
        assert pair.near._peer.attributes.integrity == far.name.lower()
        assert pair.far._peer.attributes.integrity == near.name.lower()


@pytest.mark.parametrize("far", set(Reading) - set(SHARED_READINGS), ids=lambda far: far.name)
async def test_readings__one_that_fits(far: Reading) -> None:
    await check_readings(Reading.OURS, far)


async def test_readings__all_together() -> None:
    both = set(Reading) - {Reading.G2_B}
    await check_readings(SHARED_READINGS, reduce(or_, both))


async def check_readings(near: Reading, far: Reading) -> None:
    """Data goes both ways."""
    data = pattern(1_000_000)
    async with joined(loopback_config(readings=near), loopback_config(readings=far)) as pair:
        assert await transfer(pair, data) == data
        back = Pair(pair.far_context, pair.near_context, pair.listener, pair.far, pair.near)
        assert await transfer(back, data) == data


@pytest.mark.parametrize("reading", SHARED_READINGS, ids=lambda reading: reading.name)
@pytest.mark.parametrize("near_has_it", [True, False])
async def test_readings__that_do_not_fit(reading: Reading, near_has_it: bool) -> None:
    near, far = (reading, Reading.OURS) if near_has_it else (Reading.OURS, reading)
    name = str(reading.name).replace("_", "-")
    told = {
        True: rf"mrc's own readings, this host reading {name}: set ContextConfig.readings",
        False: rf"follows reading {name}, this host mrc's own",
    }
    with pytest.raises(ConnectError, match=told[True] + "|" + told[False]):
        async with joined(loopback_config(readings=near), loopback_config(readings=far)):
            pass


@pytest.mark.usefixtures("quiet_loopback")
async def test_traffic_classes__are_on_the_wire() -> None:
    """Each packet of a transfer has one of the code points, and those of control are there."""
    classes = TrafficClasses(control=46, data=10, retransmission=18)
    config = loopback_config(traffic_classes=classes)
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800)) as tap:
        tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
        tap.bind(("lo", 0))
        tap.setblocking(False)
        async with joined(config, config) as pair:
            ports = {
                context._opened().dispatcher.engine.udp_port
                for context in (pair.near_context, pair.far_context)
            }
            await transfer(pair, pattern(30_000))
        seen = set()
        with suppress(BlockingIOError):
            while True:
                packet = tap.recv(64)
                if packet[9] == 17 and int.from_bytes(packet[22:24], "big") in ports:
                    seen.add(packet[1])
    data, control = 10 << 2 | 2, 46 << 2
    assert {data, control} <= seen <= {data, control, control | 2, 18 << 2 | 2}


def lying(honest: Callable[..., Hello]) -> Callable[..., Hello]:
    """A hello of the host "liar" that replaces its second address with a foreign one."""

    def hello(exchange: Any, *rest: Any) -> Hello:
        said = honest(exchange, *rest)
        if exchange.local.name != "liar":
            return said
        first, second = said.attributes.ports
        ports = (first, replace(second, address=ip_interface(f"{FOREIGN}/8")))
        return replace(said, attributes=dataclasses.replace(said.attributes, ports=ports))

    return hello


async def test_prove__nothing_is_sent_to_an_address_that_never_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(route._Exchange, "_hello", lying(route._Exchange._hello))
    monkeypatch.setattr(proof, "_ADDRESS_SECONDS", 0.1)
    target, data = bytearray(200_000), bytes(range(250)) * 800
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        mrc.open(loopback_config(**two_planes(name="liar"))) as liar,
        mrc.open(loopback_config(**two_planes())) as victim,
        await victim.listen(LOOPBACK[4], 0) as listener,
        await liar.connect(LOOPBACK[4], listener.port),
        await listener.accept() as qp,
        liar.register(target, writable=True) as mr,
        victim.register(data) as source,
    ):
        await qp.write(source, mr.handle)
        evs = await qp.evs()
        held_back = [ev for ev in evs if ev.destination == FOREIGN]
        assert held_back and all(ev.state is EvState.DENIED for ev in held_back)
        assert sum(ev.sent_packets for ev in held_back) == 0
        assert sum(ev.sent_probes for ev in held_back) <= proof.ADDRESS_TRIES
    assert target == data


@pytest.mark.parametrize("mtus", [(1428, 255), (100, 1428), (0, 255)])
async def test_plan__a_plane_that_carries_too_little_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mtus: tuple[int, int]
) -> None:
    """The peer's interfaces have these payloads. Without another plane the connect fails."""
    honest = route._Exchange._hello

    def hello(exchange: Any, *rest: Any) -> Hello:
        said = honest(exchange, *rest)
        ports = [
            replace(port, mtu=mtu) for port, mtu in zip(said.attributes.ports, mtus, strict=True)
        ]
        return replace(said, attributes=dataclasses.replace(said.attributes, ports=tuple(ports)))

    monkeypatch.setattr(route._Exchange, "_hello", hello)
    near, far = loopback_config(**two_planes()), loopback_config(**two_planes())
    if mtus == (0, 255):
        with pytest.raises(PathError, match=r"planes 1 \(lo\) and 2 \(lo\) to 127.0.0.1: the MTU"):
            async with joined(near, far):
                pass
        return
    async with joined(near, far) as pair:
        assert await transfer(pair, pattern(100_000)) == pattern(100_000)
        (plane,) = {ev.plane for ev in await pair.near.evs()}
        assert (mtus[plane - 1], pair.near.path_mtu) == (1428, 1428)
    line = f"plane {3 - plane} (lo) to 127.0.0.1: left out, because the MTU is too small"
    assert caplog.messages.count(line) == 1


class Choosy(Context):
    """Connects with one host only."""

    named: str

    def _terms(self, *values: Any) -> Terms:
        return replace(super()._terms(*values), check=self._check)

    def _check(self, _: str, addresses: Collection[IpAddress], remote: str) -> None:
        """As an agent checks the peer that a program has named."""
        if ip_address(self.named) not in {*addresses, ip_address(remote)}:
            raise ConnectError(f"{remote} is not {self.named}")


@pytest.mark.parametrize(
    ("peer", "named", "refused"),
    [
        ("", LOOPBACK[4], False),
        ("", "127.0.0.2", False),
        ("", FOREIGN, True),
        ("liar", FOREIGN, True),
        ("liar", "127.0.0.2", True),
    ],
)
async def test_connect__with_the_named_host_only(
    monkeypatch: pytest.MonkeyPatch, peer: str, named: str, *, refused: bool
) -> None:
    """An address of the hello counts when it has answered probes."""
    monkeypatch.setattr(route._Exchange, "_hello", lying(route._Exchange._hello))
    monkeypatch.setattr(proof, "_ADDRESS_SECONDS", 0.1)
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        mrc.open(loopback_config(**two_planes(name=peer))) as caller,
        Opening(Choosy(loopback_config(**two_planes()))._open()) as choosy,
    ):
        choosy.named = named
        async with choosy.listen(LOOPBACK[4], 0) as listener:
            if refused:
                with pytest.raises(ConnectError, match=f"127.0.0.1 is not {named}"):
                    await caller.connect(LOOPBACK[4], listener.port)
            else:
                async with caller.connect(LOOPBACK[4], listener.port):
                    pass


@pytest.mark.parametrize(("cc", "requested"), [(CcKind.DELAY, True), (CcKind.NSCC, False)])
async def test_connect__the_delay_based_window_requests_send_times(
    monkeypatch: pytest.MonkeyPatch, cc: CcKind, requested: bool
) -> None:
    """NSCC gets the SACKs of the specification. Each end does what its peer requests."""
    told: list[bool] = []
    done: list[bool] = []

    to_dict, to_rtr = Hello.to_dict, QueuePair.to_rtr

    def tell(hello: Hello) -> dict[str, Any]:
        told.append(hello.attributes.sack_times)
        return to_dict(hello)

    def move(queue: QueuePair, **fields: Any) -> Command:
        done.append(fields["sack_times"])
        return to_rtr(queue, **fields)

    monkeypatch.setattr(Hello, "to_dict", tell)
    monkeypatch.setattr(QueuePair, "to_rtr", move)
    async with connected_pair(cc=cc) as pair:
        data = pattern(500_000)
        assert await transfer(pair, data) == data
    assert told == done == [requested, requested]


FORGED = "alice (10.77.1.2, your own key) offers a photo: accept? [y/N]"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("h1", "h1"),
        ("host-3.rack_7.example", "host-3.rack_7.example"),
        ("hôte", "hôte"),
        ("", '""'),
        ('a" b', '"a\' b"'),
        (FORGED, f'"{FORGED}"'),
        ("x y" * 60, '"' + ("x y" * 60)[:61] + '..."'),
    ],
)
async def test_peer_host__a_name_that_is_none_is_quoted(name: str, told: str) -> None:
    """It would pass for what mrc itself says, such as a question."""
    async with joined(loopback_config(name=name or "x"), loopback_config()) as pair:
        far = pair.far
        far._peer = replace(far._peer, host=name)
        assert (pair.far.peer.name, pair.far.peer.host) == (name, told)
        assert far._called == f"QP {pair.far.qpn:#x} to {told}"


# ---- Attempts -----------------------------------------------------------------------------------


NO_ANSWER = no_answer("h1", ["10.0.0.1"], 4800)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            NO_ANSWER,
            f"{NO_ANSWER} TCP port 7000 of h1 answers: open both ports in the firewalls of both"
            " hosts",
        ),
        (ProtocolError("the peer sent rubbish"), "h1: TCP port 7000: the peer sent rubbish"),
        (BusyError("full"), "h1: TCP port 7000: full"),
        (PathError("plane 1 to h1: the MTU is too small"), "plane 1 to h1: the MTU is too small"),
    ],
)
def test_about(error: MrcError, text: str) -> None:
    with pytest.raises(type(error)) as told, about("h1", 7000):
        raise error
    assert str(told.value) == text
    assert type(told.value) is type(error)


async def test_connect__a_refusal_keeps_its_reason_and_kind() -> None:
    def admit(_: object) -> bool:
        raise NoAnswerError("not you")

    async with listening_to_itself(admit=admit) as (context, listener):
        with pytest.raises(ConnectRefusedError, match="the peer refused: not you") as refused:
            await context.connect("127.0.0.1", listener.port)
    assert (refused.value.reason, refused.value.kind) == ("not you", Kind.NO_ANSWER)


async def test_connect__to_a_busy_peer__pauses_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that many hosts that connect at once leave the peer time to serve some."""
    pauses: list[tuple[float, float]] = []

    def uniform(least: float, most: float) -> float:
        pauses.append((least, most))
        return 0.0

    end = object()
    answers = [*(BusyError("full") for _ in range(5)), end]
    local: Any = Mock(
        guard=None,
        rng=Mock(uniform=uniform),
        srv6=Mock(peers={}),
        establish=AsyncMock(side_effect=answers),
    )
    monkeypatch.setattr(route, "dial", AsyncMock(return_value=Mock(watchers=[])))
    assert await route.Local.connect(local, Mock(), "h1", 7000, timeout=PATIENCE) is end
    assert pauses == [(most / 2, most) for most in (0.05, 0.1, 0.2, 0.4, 0.4)]


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([BusyError("full")], BusyError),
        ([PeerGoneError("dropped")], PeerGoneError),
        ([BusyError("full"), CutOffError("silent")], ConnectTimeoutError),
    ],
)
async def test_connect__the_last_answer_before_the_time_limit_is_the_reason(
    monkeypatch: pytest.MonkeyPatch, answers: list[MrcError], error: type[MrcError]
) -> None:
    silent = asyncio.get_running_loop().create_future()
    local: Any = Mock(guard=None, rng=Mock(uniform=lambda *_: 0.0), srv6=Mock(peers={}))
    left = list(answers)

    async def dial(*_: object, **__: object) -> Mock:
        return Mock(watchers=[], received_bytes=0) if left else await silent

    async def establish(*_: object, **__: object) -> None:
        raise left.pop(0)

    local.establish = establish
    monkeypatch.setattr(route, "dial", dial)
    with pytest.raises(error) as raised:
        await route.Local.connect(local, Mock(), "h1", 7000, timeout=0.5)
    assert type(raised.value) is error


class ProgramEndedError(MrcError):
    """For which an agent cancels the connects of a program."""

    kind = Kind.ENDED


async def test_connect__that_is_cancelled_tells_the_peer_why() -> None:
    heard = asyncio.get_running_loop().create_future()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = b""
        while not said.endswith(b"}") or b'"refuse"' not in said:
            said += await reader.read(1 << 16)
            dialled.set()
        heard.set_result(said)
        writer.close()

    dialled = asyncio.Event()
    async with (
        asyncio.timeout(PATIENCE),
        await asyncio.start_server(listen, "127.0.0.1", 0) as server,
        mrc.open(loopback_config()) as context,
    ):
        port = server.sockets[0].getsockname()[1]
        dialling = asyncio.ensure_future(context.connect("127.0.0.1", port))
        await dialled.wait()
        await cancelled(dialling, why=ProgramEndedError("the program has ended"))
        said = await heard
        assert b'"the program has ended"' in said and b'"kind":"ended"' in said


# ---- The TCP connection -------------------------------------------------------------------------


SILENT = "127.0.0.66"  # a listener there accepts no more connections
REFUSING = "127.0.0.67"
ANSWERING = "127.0.0.68"
ELSEWHERE = "192.0.2.1"  # no address of this host


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A TCP port with a listener at ANSWERING, a full one at SILENT and none at REFUSING."""
    monkeypatch.setattr(dialing, "_HEAD_START_SECONDS", 0.05)
    with (
        socket.create_server((ANSWERING, 0)) as answering,
        socket.create_server((SILENT, port := answering.getsockname()[1]), backlog=0),
        socket.create_connection((SILENT, port)),
    ):
        yield port


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    async def found(*_: object, **__: object) -> list[object]:
        return [(2, 1, 6, "", (address, 0)) for address in addresses for _ in range(2)]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)


@pytest.mark.parametrize(
    ("found", "address"),
    [
        (("192.0.2.1", 80), "192.0.2.1"),
        (("fd00::1", 80, 0, 0), "fd00::1"),
        (("fe80::1", 80, 0, 2), "fe80::1%2"),
    ],
)
def test_numeric(found: tuple[str | int, ...], address: str) -> None:
    assert numeric(found) == address


async def test_dial__of_two_connections_that_come_together_one_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialing, "_HEAD_START_SECONDS", 0)
    both, writers = asyncio.Event(), [Mock(), Mock()]
    left = list(writers)

    async def connection(*_: object, **__: object) -> tuple[Mock, Mock]:
        writer = left.pop(0)
        if not left:
            both.set()
        await both.wait()
        return Mock(), writer

    monkeypatch.setattr(asyncio, "open_connection", connection)
    _, chosen = await dialing._first([(ANSWERING, None), (SILENT, None)], 80)
    assert [writer.close.call_count for writer in writers] == [
        int(writer is not chosen) for writer in writers
    ]


@pytest.mark.parametrize(
    ("host", "name"), [("h1", "192.0.2.1"), ("h0", "localhost"), ("elsewhere", "elsewhere")]
)
async def test_dial__a_host_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, host: str, name: str
) -> None:
    asked = []

    async def found(name: str, *_: object, **__: object) -> list[object]:
        asked.append(name)
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
    peers = {"h1": HostPeer(name="h1", oob="192.0.2.1")}
    config = HostConfig(host="h0", source=HostConfig.Source.INTERFACES, peers=peers)
    with pytest.raises(ResolveError, match=f"{host}: no such host: unknown"):
        await dial(config, host, 1)
    assert asked == [name]


@pytest.mark.parametrize(
    "addresses",
    [
        (ANSWERING,),
        (ANSWERING, SILENT),
        (SILENT, ANSWERING),
        (REFUSING, SILENT, SILENT, ANSWERING),
        (SILENT, REFUSING, ANSWERING),
    ],
)
async def test_dial__the_first_address_that_answers(
    port: int, monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
) -> None:
    resolve_to(monkeypatch, *addresses)
    async with asyncio.timeout(PATIENCE):
        channel = await dial(None, "h1", port)
    assert (channel.remote, channel.called) == (ANSWERING, "h1")
    channel.abort()


async def test_dial__no_address_answers(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, REFUSING, "127.0.0.69")
    with pytest.raises(ConnectError, match=f"h1: no program listens on TCP port {port}"):
        await dial(None, "h1", port)


@pytest.mark.parametrize(("source", "seen"), [("127.0.0.9", "127.0.0.9"), (ELSEWHERE, "127.0.0.1")])
async def test_dial__from_an_address_that_leads_there(
    monkeypatch: pytest.MonkeyPatch, source: str, seen: str
) -> None:
    """Otherwise from any."""
    monkeypatch.setattr(
        dialing, "_HEAD_START_SECONDS", PATIENCE
    )  # a late answer calls no other way
    callers: list[str] = []

    def on_peer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.append(writer.get_extra_info("peername")[0])
        writer.close()

    server = await asyncio.start_server(on_peer, "127.0.0.1", 0)
    async with asyncio.timeout(PATIENCE), server:
        port = server.sockets[0].getsockname()[1]
        channel = await dial(None, "127.0.0.1", port, ip_address(source))
        with pytest.raises(MrcError):
            await channel.receive()
        channel.abort()
    assert callers == [seen]


async def test_dial__keeps_the_zone_of_a_link_local_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python's getaddrinfo removes it from the text of the address."""
    dialled: list[str] = []

    async def found(*_: object, **__: object) -> list[object]:
        return [(10, 1, 6, "", ("fe80::1", 0, 0, 3)), (10, 1, 6, "", ("fd00::1", 0, 0, 0))]

    async def refuse(host: str, port: int, **_: object) -> None:
        dialled.append(host)
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
    monkeypatch.setattr(asyncio, "open_connection", refuse)
    with pytest.raises(ConnectError):
        await dial(None, "fe80::1%eth2", 4791)
    assert dialled == ["fe80::1%3", "fd00::1"]


# ---- A long round trip; codes of attempts that did not end ---------------------------------------


CODE = "maple-rocket-cider"
LOCAL = "127.0.0.1"


class Way:
    """A relay that delivers each byte `delay` seconds later, and nothing after `most` bytes."""

    def __init__(self, port: int, delay: float, most: int) -> None:
        self._port, self._delay, self._most = port, delay, most
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def close(self) -> None:
        await cancelled(*self._tasks)
        for writer in self._writers:
            writer.transport.abort()

    async def on_peer(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, forth = await asyncio.open_connection(LOCAL, self._port)
        self._writers += [back, forth]
        for source, to, most in ((near, forth, 1 << 30), (far, back, self._most)):
            task = asyncio.create_task(self._carry(source, to, most))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, most: int
    ) -> None:
        later = asyncio.get_running_loop().call_later
        while data := await source.read(1 << 16):
            later(self._delay, to.write, data[: max(0, most)])
            most -= len(data)
        later(self._delay, to.close)


@contextlib.asynccontextmanager
async def way(port: int, delay: float, most: int = 1 << 30) -> AsyncIterator[int]:
    """The port at which the way to `port` begins."""
    made = Way(port, delay, most)
    server = await asyncio.start_server(made.on_peer, LOCAL, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await made.close()


@pytest.fixture
def coded(tmp_path: Path) -> Security:
    return Security(code=CODE, identity=load(tmp_path / "b.pem").path)


async def test_connect__a_silent_peer_gains_nothing_by_a_long_way(coded: Security) -> None:
    async with (
        asyncio.timeout(PATIENCE),
        waiting(coded, timeouts=Timeouts(hello=0.2)) as (_, listener),
        way(listener.port, 0.1) as port,
    ):
        reader, writer = await asyncio.open_connection(LOCAL, port)
        assert b"did not finish within 0.2 s" in await reader.read()
        writer.close()


async def test_code__is_still_good_after_an_attempt_that_was_too_slow(coded: Security) -> None:
    """The peer gives up before this side has shown anything by which a guess can be checked."""
    async with (
        asyncio.timeout(PATIENCE),
        waiting(coded) as (_, listener),
        host(Security(code=CODE)) as one,
    ):
        async with way(listener.port, 0.0, most=200) as port:  # until TLS
            with pytest.raises(ConnectTimeoutError):
                await one.connect(LOCAL, port, timeout=0.5)
        async with one.connect(LOCAL, listener.port) as near, await listener.accept():
            assert near.peer.identity == "code"


async def test_code__an_end_after_the_guess_is_not_called_wrong(
    coded: Security, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The listener has answered the guess, so the code is used; but it was not wrong. The next
    attempt says so too.
    """
    send = Channel.send

    async def ends(channel: Channel, message: str, /, **fields: str) -> None:
        if message == "confirm":
            channel.abort()
            raise PeerGoneError("the way has ended")
        await send(channel, message, **fields)

    monkeypatch.setattr(Channel, "send", ends)
    monkeypatch.setattr(route, "_DROPS", 0)
    async with (
        asyncio.timeout(PATIENCE),
        waiting(coded) as (other, listener),
        host(Security(code=CODE)) as one,
    ):
        with pytest.raises(PeerGoneError):
            await one.connect(LOCAL, listener.port)
        lost = "the code was used, but the exchange did not finish"
        assert lost in await other._code_failed()
        with pytest.raises(ConnectError, match=lost):
            await one.connect(LOCAL, listener.port)
    assert not any("wrong" in message for message in caplog.messages)
