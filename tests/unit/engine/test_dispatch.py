# SPDX-License-Identifier: Apache-2.0
"""Batches, cookies and futures with a fake engine; the CPU time of an idle Context; ports that open
and close as interfaces change.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address, ip_interface
from typing import Any, cast
from unittest.mock import Mock, patch

import pytest
from endpoints import Pair, connected_pair, memory, spawn, until
from msgspec.structs import replace

from mrc.config import ContextConfig, Spraying
from mrc.connect.parse import parse_address
from mrc.engine import engine, ports
from mrc.engine.dispatch import Dispatcher
from mrc.engine.engine import (
    Engine,
    EngineEvent,
    EventLoss,
    Notice,
    ProbeReply,
    Reply,
    Written,
)
from mrc.engine.memory import HeldBuffer, Region, RemoteMemory
from mrc.engine.native import Command, Submission, ffi
from mrc.engine.paths import PortSelection
from mrc.engine.ports import LocalPorts, link_snapshots, number
from mrc.engine.queue_pair import QueuePair
from mrc.engine.send_queue import SendQueue, Write
from mrc.enums import (
    Access,
    CommandOp,
    EventReason,
    EventType,
    QpState,
    WarningKind,
    WcOpcode,
    WcStatus,
)
from mrc.errors import (
    ArgumentError,
    CompletionError,
    ConfigError,
    MrcError,
    NetlinkError,
    QueueFullError,
    StateError,
)
from mrc.events import Completion, ContextWarning, Immediate, ProbeResult
from mrc.fabric.hostconfig import HostConfig, IpAddress
from mrc.linux.rtnetlink import Interface


class FakeEngine:
    """Takes commands up to `room`, and returns the events that the test puts into `events`."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        self._commands = ffi.new("struct mrc_command[]", 1)
        self.polled = False
        self.room = 1000
        self.memory = True
        self.batches: list[list[Submission]] = []
        self.events: list[EngineEvent] = []
        self.submitted = asyncio.Event()

    def submit(self, batch: Iterable[Submission]) -> int:
        if not self.memory:
            self.memory = True
            raise MemoryError
        taken = list(batch)[: self.room]
        for each in taken:
            each.fill(self._commands, 0)
        self.room -= len(taken)
        self.batches.append(taken)
        self.submitted.set()
        return len(taken)

    def may_sleep(self) -> bool:
        return True

    def say(self, *events: EngineEvent) -> None:
        self.events += events
        os.write(self._write, b"x")

    def poll(self, events: deque[EngineEvent]) -> int:
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            pass
        n = len(self.events)
        while self.events:
            events.append(self.events.pop(0))
            if not self.memory:
                self.memory = True
                raise MemoryError
        return n

    def close(self) -> None:
        os.close(self._write)
        os.close(self.fd)

    @property
    def taken(self) -> list[Any]:
        return [each for batch in self.batches for each in batch]


@asynccontextmanager
async def dispatcher_over() -> AsyncIterator[tuple[Dispatcher, FakeEngine]]:
    engine = FakeEngine()
    dispatcher = Dispatcher(cast(Engine, engine))
    try:
        yield dispatcher, engine
    finally:
        await dispatcher.close()


def command(**fields: Any) -> Command:
    return Command({"op": CommandOp.QP_QUERY, "qpn": 7, **fields})


def ready_queue(depth: int = 8) -> QueuePair:
    return QueuePair(sq_depth=depth, mpr=1024, max_wimm=128, qpn=7, state=QpState.RTS)


async def test_call__one_turn_of_the_loop_is_one_batch() -> None:
    async with dispatcher_over() as (dispatcher, engine):
        replies = [dispatcher.call(command(value=i), "query") for i in range(5)]
        await asyncio.sleep(0)
        assert [len(batch) for batch in engine.batches] == [5]
        assert [c.fields["value"] for c in engine.taken] == [0, 1, 2, 3, 4]
        engine.say(*(Reply(c.fields["cookie"], i) for i, c in enumerate(engine.taken)))
        assert await asyncio.gather(*replies) == [0, 1, 2, 3, 4]


async def test_call__a_full_ring_goes_on_where_it_stopped() -> None:
    async with dispatcher_over() as (dispatcher, engine):
        engine.room = 2
        replies = [dispatcher.call(command(value=i), "query") for i in range(5)]
        await asyncio.sleep(0)
        assert len(engine.taken) == 2
        engine.room = 1000
        engine.say()  # as in C, when there is room again
        engine.submitted.clear()
        await engine.submitted.wait()
        assert [c.fields["value"] for c in engine.taken] == [0, 1, 2, 3, 4]
        engine.say(*(Reply(c.fields["cookie"], 0) for c in engine.taken))
        await asyncio.gather(*replies)


async def test_call__is_submitted_later_when_memory_was_short() -> None:
    async with dispatcher_over() as (dispatcher, engine):
        engine.memory = False
        reply = dispatcher.call(command(), "query")
        await engine.submitted.wait()
        engine.say(Reply(engine.taken[0].fields["cookie"], 0))
        assert await reply == 0


async def test_events__none_is_lost_when_memory_was_short() -> None:
    async with dispatcher_over() as (dispatcher, engine):
        replies = [dispatcher.call(command(value=i), "query") for i in range(3)]
        await engine.submitted.wait()
        engine.memory = False
        engine.say(*(Reply(c.fields["cookie"], i) for i, c in enumerate(engine.taken)))
        assert await asyncio.gather(*replies) == [0, 1, 2]


async def test_call__a_refusal_is_an_exception_that_names_the_attempt() -> None:
    async with dispatcher_over() as (dispatcher, engine):
        reply = dispatcher.call(command(), "QP 0x7: query")
        await asyncio.sleep(0)
        engine.say(Reply(engine.taken[0].fields["cookie"], -errno.EINVAL))
        with pytest.raises(ArgumentError, match="QP 0x7: query"):
            await reply


async def test_call__memory_lives_until_the_reply_even_when_cancelled() -> None:
    async with dispatcher_over() as (dispatcher, engine):
        buffer = bytearray(8)
        kept = command()
        kept.keep = memoryview(buffer)
        reply = dispatcher.call(kept, "query")
        await asyncio.sleep(0)
        cookie = kept.fields["cookie"]
        reply.cancel()
        del kept
        engine.batches.clear()
        with pytest.raises(BufferError):
            buffer.append(0)
        engine.say(Reply(cookie, 0))
        dispatcher.drain()
        buffer.append(0)


@asynccontextmanager
async def sending(depth: int) -> AsyncIterator[tuple[SendQueue, FakeEngine, Dispatcher]]:
    """The send queue of a QP that the dispatcher knows."""
    async with dispatcher_over() as (dispatcher, engine):
        queue = ready_queue(depth)
        dispatcher.attach(queue, Recorder())
        yield queue.sends, engine, dispatcher


def post(sends: SendQueue, imm: int = 0) -> asyncio.Future[int]:
    return sends.post(None, None, imm, False)


def cookies_of(engine: FakeEngine) -> list[int]:
    """Of the work requests that have a completion, in the order of posting."""
    found = []
    for turn in engine.taken:
        wrs = ffi.cast("struct mrc_wr *", turn.memory)
        found += [wrs[i].wr_id for i in range(turn.count) if not wrs[i].unsignaled]
    return found


async def test_post__completions_give_places_back() -> None:
    async with sending(3) as (sends, engine, _):
        good, bad, late = post(sends), post(sends, 1), post(sends, 2)
        idle = asyncio.ensure_future(sends.until_idle())
        await asyncio.sleep(0)
        assert sends.taken == 3
        cookies = cookies_of(engine)
        engine.say(
            Written(cookies[:1]),
            Completion(cookies[1], 7, 6, WcStatus.REM_ACCESS_ERR, WcOpcode.WRITE),
            Completion(cookies[2], 7, 0, WcStatus.SUCCESS, WcOpcode.WRITE_IMM),
        )
        assert await good == 0
        with pytest.raises(CompletionError, match=r"write of 6 bytes: .*REM_ACCESS_ERR") as caught:
            await bad
        assert caught.value.status is WcStatus.REM_ACCESS_ERR
        assert await late == 0, "a success behind an error comes as a completion"
        await idle
        assert sends.taken == 0


async def test_post__what_a_turn_of_the_loop_posts_is_one_command() -> None:
    async with sending(8) as (sends, engine, dispatcher):
        done = [post(sends, imm) for imm in range(3)]
        asked = dispatcher.call(command(), "query")
        done += [post(sends, 3)]
        await asyncio.sleep(0)
        posts, query = engine.taken
        assert (posts.count, posts.postings) == (4, 4)
        engine.say(Written(cookies_of_turn(posts)), Reply(query.fields["cookie"], 0))
        assert await asyncio.gather(*done, asked) == [0] * 5


def cookies_of_turn(turn: Any) -> list[int]:
    return [turn.queue.cookie | turn.first + at for at in range(turn.postings)]


async def test_post__a_full_ring_goes_on_where_it_stopped() -> None:
    async with sending(8) as (sends, engine, _):
        engine.room = 1
        done = [sends.post_many([Write(imm=imm), Write(imm=imm)]) for imm in range(3)]
        await asyncio.sleep(0)
        assert len(engine.taken) == 1
        engine.room = 1000
        engine.say()
        engine.submitted.clear()
        await engine.submitted.wait()
        engine.say(Written(cookies_of(engine)))
        assert await asyncio.gather(*done) == [0, 0, 0]


async def test_post__events_go_on_after_memory_was_short() -> None:
    async with sending(8) as (sends, engine, dispatcher):
        done = [post(sends, imm) for imm in range(4)]
        await asyncio.sleep(0)
        cookies, complete = cookies_of(engine), sends.complete
        short = [True]

        def fail_once(cookie: int, error: MrcError | OSError | None = None) -> None:
            if cookie == cookies[2] and short:
                raise MemoryError(short.pop())
            complete(cookie, error)

        with patch.object(sends, "complete", fail_once):
            engine.say(Written([*cookies]))
            with pytest.raises(MemoryError):
                dispatcher.drain()
        assert [each.done() for each in done] == [True, True, False, False]
        engine.say()
        dispatcher.drain()
        assert all(each.done() for each in done)


async def test_post__a_refusal_of_the_engine_is_that_of_its_command() -> None:
    async with sending(8) as (sends, engine, _):
        first = [post(sends, imm) for imm in range(2)]
        await asyncio.sleep(0)
        second = [post(sends, imm) for imm in range(2)]
        await asyncio.sleep(0)
        cookies = cookies_of(engine)
        engine.say(Reply(cookies[2], -errno.ENOBUFS))
        for done in second:
            with pytest.raises(QueueFullError, match="QP 0x7: post"):
                await done
        assert sends.taken == 2
        engine.say(Written(cookies[:2]))
        assert await asyncio.gather(*first) == [0, 0]
        assert sends.taken == 0


async def test_poll__loses_no_write_when_memory_was_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What C had handed over was lost with the list it was put into."""
    short: list[int] = []

    class Short:
        """The FFI of a process whose memory is short once."""

        def __getattr__(self, name: str) -> Any:
            return getattr(ffi, name)

        def unpack(self, cookies: Any, count: int) -> list[int]:
            if not short:
                short.append(count)
                raise MemoryError
            return cast(list[int], ffi.unpack(cookies, count))

    async with connected_pair() as pair:
        monkeypatch.setattr(engine, "ffi", Short())
        assert await asyncio.gather(*(pair.near.write(imm=imm) for imm in range(9))) == [0] * 9
        immediates = pair.far.immediates()
        assert [(await anext(immediates)).imm for _ in range(9)] == list(range(9))
    assert short


async def test_users_of__the_qps_that_use_a_region() -> None:
    async with sending(1) as (sends, engine, dispatcher):
        region = Region(HeldBuffer(4096, 8, None), Access.LOCAL_READ, Mock())
        assert not dispatcher.holds(region)
        dispatcher._regions[region._key] = region
        assert dispatcher.holds(region) and dispatcher.users_of(region) == set()
        done = sends.post(region, RemoteMemory(0, 1, 8), None, False)
        assert dispatcher.users_of(region) == {7}
        idle = asyncio.ensure_future(dispatcher.until_idle(region))
        await asyncio.sleep(0)
        engine.say(Written(cookies_of(engine)))
        await idle
        assert (await done, dispatcher.users_of(region)) == (8, set())


async def test_probe__reply_first_then_the_result() -> None:
    async with dispatcher_over() as (dispatcher, engine):
        probing = asyncio.ensure_future(dispatcher.probe(command(), "probe"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        cookie = engine.taken[0].fields["cookie"]
        result = ProbeResult(0, 0, 1000)
        engine.say(Reply(cookie, 0), ProbeReply(cookie, result))
        assert await probing == result


async def test_detach__probes_of_the_qp_end_and_late_answers_are_ignored() -> None:
    async with dispatcher_over() as (dispatcher, engine):
        probing = asyncio.ensure_future(dispatcher.probe(command(), "probe"))
        other = asyncio.ensure_future(dispatcher.probe(command(qpn=8), "probe"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        cookies = [c.fields["cookie"] for c in engine.taken]
        dispatcher.detach(ready_queue())
        with pytest.raises(StateError, match="probe: the QP was closed"):
            await probing
        result = ProbeResult(0, 0, 1000)
        engine.say(*(event for c in cookies for event in (Reply(c, 0), ProbeReply(c, result))))
        assert await other == result


async def test_close__whoever_waits_is_told() -> None:
    async with dispatcher_over() as (dispatcher, _):
        reply = dispatcher.call(command(), "query")
        probing = asyncio.ensure_future(dispatcher.probe(command(), "probe"))
        await asyncio.sleep(0)
        await dispatcher.close()
        await dispatcher.close()
        for waiting in (reply, probing):
            with pytest.raises(StateError, match="the Context was closed"):
                await waiting
        with pytest.raises(StateError, match="the Context is closed"):
            dispatcher.call(command(), "query")


async def test_warnings__of_buffers_are_logged_once_and_quietly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="mrc.dispatch")
    async with dispatcher_over() as (dispatcher, engine):
        small = [ContextWarning(WarningKind.RCVBUF_SMALL, plane, 212992) for plane in (1, 2)]
        faults = [ContextWarning(WarningKind.MEMORY_FAULT, 0, key) for key in (5, 6)]
        engine.say(*small, *faults)
        dispatcher.drain()
        assert list(dispatcher.warnings) == [*small, *faults]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3
    assert "net.core.rmem_max (212992 bytes granted)" in messages[0]
    levels = [record.levelname for record in caplog.records]
    assert levels == ["INFO", "WARNING", "WARNING"], "doctor tells ordinary users about buffers"


class Recorder:
    """Records the calls."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def _on_immediate(self, immediate: Immediate) -> None:
        self.told.append(immediate)

    def _on_notice(self, notice: Notice) -> None:
        self.told.append(notice)

    def _on_events_lost(self, count: int) -> None:
        self.told.append(count)


async def test_notices__go_to_their_qp_and_losses_to_every_one() -> None:
    first = Notice(EventType.PLANE, 5, 0, 2, 0, EventReason.SILENCE)
    second = Notice(EventType.PLANE, 5, 0, 2, 1, EventReason.PROBES)
    async with dispatcher_over() as (dispatcher, engine):
        one, other = Recorder(), Recorder()
        queues = [QueuePair(8, 1024, 128, qpn=qpn) for qpn in (5, 6)]
        dispatcher.attach(queues[0], one)
        dispatcher.attach(queues[1], other)
        engine.say(first, EventLoss(3), second)
        dispatcher.drain()
        assert one.told == [first, 3, second]
        assert other.told == [3]
        dispatcher.detach(queues[0])
        engine.say(first)
        dispatcher.drain()
        assert len(one.told) == 3


# ---- The CPU time of an idle Context ------------------------------------------------------------


WATCHED_SECONDS = 0.5


async def is_idle() -> bool:
    """Whether this process, datapath threads included, takes little CPU time while this test only
    waits. What another test or Python itself does once is over at the next look.
    """
    cpu, clock = time.process_time(), time.monotonic()
    await asyncio.sleep(WATCHED_SECONDS)
    return time.process_time() - cpu < 0.1 * (time.monotonic() - clock)


async def has_error_reports(pair: Pair) -> bool:
    return (await pair.near_context.counters())["TX_ERROR_REPORTS"] > 0


@pytest.mark.parametrize("version", [4, 6])
async def test_idle__icmp_errors_leave_nothing_to_do(version: int) -> None:
    async with (
        connected_pair(version) as pair,
        memory(pair, bytes(1 << 20), bytearray(1 << 20)) as (source, target),
    ):
        await until(is_idle)
        far = pair.far_context._opened().dispatcher
        await far.call(engine.port_close(1), "port")
        write = spawn(pair.near.write(source, target.handle))
        await until(lambda: has_error_reports(pair))
        await until(is_idle)  # for ever, if a descriptor with an error stayed ready
        await pair.near.abort()
        await asyncio.gather(write, return_exceptions=True)


# ---- Ports: which open and close as interfaces change, under which numbers ----------------------


def nic(name: str, *addresses: str, index: int = 7, up: bool = True, mtu: int = 1500) -> Interface:
    return Interface(name, index, mtu, up, tuple(map(ip_interface, addresses)))


LO = nic("lo", "127.0.0.1/8", index=1)
ETH0 = nic("eth0", "10.0.0.1/24", index=2)
ETH1 = nic("eth1", "10.0.1.1/24", index=3)


@dataclass
class Datapath:
    """Takes commands, and refuses some."""

    done: list[str] = field(default_factory=list)
    in_use: set[int] = field(default_factory=set)
    """ports used by QPs: they only open with their old address"""
    broken: bool = False
    addresses: dict[int, object] = field(default_factory=dict)
    udp_port: int = 0

    async def call(self, command: Command, what: str) -> int:
        plane = command.fields["value"]
        match command.fields["op"]:
            case CommandOp.PORT_UP:
                self.done.append(f"{plane} {'up' if command.fields['key'] else 'down'}")
            case CommandOp.PORT_CLOSE:
                self.done.append(f"{plane} closed")
            case CommandOp.PORT_OPEN:
                self._open(plane, command.fields["pointer"])
        return 0

    def _open(self, plane: int, opening: Any) -> None:
        address = parse_address(str(IPv6Address(bytes(opening.config.address))))
        if self.broken:
            opening.cause = b"cannot bind"
            raise OSError("what")
        if plane in self.in_use and self.addresses.get(plane) not in (None, address):
            raise StateError("in use")
        self.addresses[plane] = address
        opening.udp_port = 5000
        opening.sports = [40000 + plane] * 64
        self.done.append(f"{plane} {address}")

    def take(self) -> list[str]:
        done, self.done = self.done, []
        return done


class Host:
    """LocalPorts of a host with scripted interfaces."""

    def __init__(self, *wanted: str, host: HostConfig | None = None) -> None:
        config = ContextConfig(interfaces=wanted, spraying=Spraying(evs_per_pair=2))
        self.config = config
        self.links = LocalPorts.of(config, host)
        self.datapath = Datapath()

    async def has(self, *nics: Interface) -> list[str]:
        """The actions taken when the host has these interfaces."""
        steered: Any = self.datapath
        await self.links.apply(nics, self.datapath.call, steered)
        return self.datapath.take()


def test_number__in_order_behind_those_that_are_reserved() -> None:
    nics = [LO, ETH0, ETH1]
    numbered = number(PortSelection.of_interfaces(nics, (), 1))
    assert {plane: port.nic for plane, port in numbered.items()} == {1: "eth0", 2: "eth1", 5: "lo"}
    assert list(number(PortSelection.of_interfaces([LO], (), 1))) == [5]
    assert list(number(PortSelection.of_interfaces(nics, ["eth9", "eth1"], 1))) == [2, 3]


def test_number__more_than_the_engine_has() -> None:
    nics = [nic(f"eth{i}", f"10.0.{i}.1/24") for i in range(33)]
    with pytest.raises(ConfigError, match="34 ports are needed, at most 32"):
        number(PortSelection.of_interfaces([LO, *nics], [each.name for each in nics], 1))


async def test_apply__late_gone_and_back() -> None:
    host = Host()
    assert await host.has(LO) == ["5 127.0.0.1"]
    assert await host.has(LO, ETH0) == ["1 10.0.0.1"]
    assert await host.has(LO, ETH0) == []
    assert host.links.sports[1] == (40001,) * 6
    assert [port.plane for port in host.links.ports] == [1, 5]
    assert await host.has(LO) == ["1 closed"]
    assert [port.plane for port in host.links.ports] == [5]
    assert await host.has(LO, ETH1) == ["2 10.0.1.1"], "the number of eth0 is kept while it can be"
    assert await host.has(LO, ETH0, ETH1) == ["1 10.0.0.1"]
    assert host.datapath.udp_port == 5000


VIRTUAL = ip_address("10.9.9.9")


async def named(host: Host, *nics: Interface, own: IpAddress = VIRTUAL) -> list[str]:
    """The actions taken when a peer behind eth0 has named an address of this host."""
    steered: Any = host.datapath
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Interface, "all", lambda _: list(nics))
        patch.setattr(Interface, "towards", lambda peer, own, _: ETH0.index)
        peer = ip_address("10.0.0.7")
        await host.links.open_for(own, peer, host.config, host.datapath.call, steered)
    return host.datapath.take()


async def test_open_for__an_address_of_lo() -> None:
    """It stays while the host has it, apart from the ports of the interfaces."""
    host, lo = Host(), nic("lo", "127.0.0.1/8", f"{VIRTUAL}/32")
    await host.has(lo, ETH0)
    assert await named(host, lo, ETH0, own=ip_address("10.0.0.1")) == [], "it has a port"
    assert await named(host, lo, ETH0) == ["6 10.9.9.9"]
    (port,) = (each for each in host.links.ports if each.plane == 6)
    assert (port.nic, port.ifname, port.deprecated) == ("eth0", "", True)
    assert await named(host, lo, ETH0) == []
    assert await host.has(lo, ETH0, ETH1) == ["2 10.0.1.1"]
    assert await host.has(LO, ETH0, ETH1) == ["6 closed"]


async def test_open_for__an_address_that_becomes_the_one_of_its_interface() -> None:
    host = Host()
    both = replace(ETH0, addresses=(*ETH0.addresses, ip_interface(f"{VIRTUAL}/24")))
    await host.has(both)
    assert await named(host, both) == ["5 10.9.9.9"]
    only = replace(ETH0, addresses=both.addresses[-1:])
    assert await host.has(only) == ["1 closed"]
    assert [(port.plane, port.deprecated) for port in host.links.ports] == [(5, False)]


@pytest.mark.parametrize("case", ["of no interface", "not configured", "link-local", "many"])
async def test_open_for__not(case: str) -> None:
    host, lo = Host(*["eth0"] * (case == "not configured")), nic("lo", "127.0.0.1/8")
    more = [ip_address(f"10.9.9.{n}") for n in range(1, 5)]
    own = ip_address("fe80::9") if case == "link-local" else VIRTUAL
    if case != "of no interface":
        lo = nic("lo", "127.0.0.1/8", f"{own}/128" if own.version == 6 else f"{own}/32",
                 *(f"{each}/32" for each in more))  # fmt: skip
    await host.has(lo, ETH0)
    if case == "many":
        for each in more:
            assert len(await named(host, lo, ETH0, own=each)) == 1
    assert await named(host, lo, ETH0, own=own) == []


async def test_apply__a_link_that_is_down_keeps_its_sockets() -> None:
    host = Host()
    await host.has(ETH0, ETH1)
    flushed = replace(ETH1, up=False, addresses=())
    assert await host.has(ETH0, flushed) == ["2 down"]
    assert await host.has(ETH0, flushed) == []
    assert await host.has(ETH0, ETH1) == ["2 up"]
    assert await host.has(ETH0, replace(ETH1, up=False)) == ["2 down"]
    assert await host.has(ETH0) == ["2 closed"]
    assert await host.has(ETH0, ETH1) == ["2 10.0.1.1"], "it opens as up"


async def test_apply__made_again_with_another_index() -> None:
    host = Host()
    await host.has(ETH0, ETH1)
    assert await host.has(ETH0, replace(ETH1, index=9)) == ["2 closed", "2 10.0.1.1"]
    assert await host.has(ETH0, replace(ETH1, index=9)) == []


async def test_apply__another_address_while_qps_use_the_old_one() -> None:
    host = Host("eth0")
    await host.has(ETH0)
    moved = nic("eth0", "10.0.0.9/24", index=2)
    host.datapath.in_use = {1}
    assert await host.has(moved) == ["1 closed", "2 10.0.0.9"]
    assert await host.has(ETH0) == ["2 closed", "1 10.0.0.1"]
    host.datapath.in_use = set()
    assert await host.has(moved) == ["1 closed", "2 10.0.0.9"]


async def test_apply__numbers_do_not_run_out() -> None:
    host = Host()
    for i in range(200):
        assert len(await host.has(ETH0, nic(f"veth{i}", f"10.1.{i}.1/24", index=i))) <= 3
    assert [port.nic for port in host.links.ports] == ["eth0", "veth199"]
    assert host.links.highest <= 32


async def test_apply__a_new_mtu_and_an_older_address_that_is_listed_later() -> None:
    host = Host()
    await host.has(ETH0)
    assert await host.has(nic("eth0", "10.0.0.9/24", "10.0.0.1/24", index=2, mtu=9000)) == []
    (port,) = host.links.ports
    assert (port.mtu, str(port.address.ip)) == (8928, "10.0.0.1")


async def test_apply__what_cannot_be_opened_is_said_once_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = Host()
    host.datapath.broken = True
    for _ in range(2):
        assert await host.has(ETH0) == []
    assert caplog.messages == ["eth0 (10.0.0.1) cannot be used: cannot bind"]
    assert host.links.impatient
    host.datapath.broken = False
    assert await host.has(ETH0) == ["1 10.0.0.1"]
    assert not host.links.impatient


async def test_tell__once_what_is_missing_and_what_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = Host()
    await host.has(LO)
    host.links.tell()
    await host.has(LO)
    await host.has(LO, ETH0)
    await host.has(LO)
    await host.has(LO, ETH0, ETH1)
    assert caplog.messages == [
        "no usable interface yet: no interface is up and has an address",
        "in use now: eth0 (10.0.0.1)",
    ]


async def test_tell__of_each_that_was_named(caplog: pytest.LogCaptureFixture) -> None:
    host = Host("eth0", "eth1")
    await host.has(ETH0)
    host.links.tell()
    await host.has(ETH0, ETH1)
    assert caplog.messages == [
        "in use now: eth0 (10.0.0.1); not yet: no interface eth1; this host has eth0",
        "in use now: eth0 (10.0.0.1), eth1 (10.0.1.1)",
    ]


async def test_tell__nothing_when_nothing_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    host = Host()
    await host.has(LO, ETH0)
    host.links.tell()
    await host.has(LO)
    assert caplog.messages == []


async def test_check__without_what_was_named() -> None:
    host = Host("eth0", "eth1")
    await host.has(LO)
    with pytest.raises(ConfigError, match=r"no interface eth0; .*; no interface eth1"):
        host.links.check(("eth0", "eth1"))
    await host.has(LO, ETH1)
    host.links.check(("eth0", "eth1"))


# ---- The times at which the monitor reads the interfaces ----------------------------------------


async def test_link_snapshots__begin_with_what_is_and_end_when_cancelled() -> None:
    snapshots = link_snapshots()
    assert "lo" in [interface.name for interface in await anext(snapshots)]
    waiting = asyncio.ensure_future(anext(snapshots))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_link_snapshots__take_little_however_often_something_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Method: the monitor always has a reason to look, and each look takes 20 ms of CPU time."""
    monkeypatch.setattr(ports, "_RETRY_SECONDS", 0.0)
    used, pauses, sleep = 0.0, list[float](), asyncio.sleep

    def interfaces(_: object) -> list[Interface]:
        nonlocal used
        used += 0.02
        return []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(Interface, "all", interfaces)
    monkeypatch.setattr(time, "thread_time", lambda: used)
    monkeypatch.setattr(asyncio, "sleep", pause)
    async for _ in link_snapshots(lambda: True):
        if len(pauses) == 20:
            break
    assert used < 0.25 * (used + sum(pauses))


async def test_link_snapshots__go_on_when_interfaces_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ports, "_RETRY_SECONDS", 0.0)
    answers = [NetlinkError("cannot read from the kernel"), []]
    monkeypatch.setattr(Interface, "all", Mock(side_effect=answers))
    assert await anext(link_snapshots(lambda: True)) == []
