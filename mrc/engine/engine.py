# SPDX-License-Identifier: Apache-2.0
"""An open engine as an object: takes commands, returns decoded events, never blocks."""

from __future__ import annotations

import os
import secrets
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from mrc.engine import native
from mrc.engine.memory import Region
from mrc.engine.native import (
    FORKED,
    POLL_BATCH,
    SUBMIT_BATCH,
    CData,
    Command,
    StructQueue,
    Submission,
    check,
    ffi,
    lib,
)
from mrc.engine.paths import LocalPort
from mrc.enums import CommandOp, EventReason, EventType, WarningKind, WcOpcode, WcStatus
from mrc.errors import ArgumentError, StateError
from mrc.events import Completion, ContextWarning, Immediate, ProbeResult
from mrc.fabric.hostconfig import pack_address


class Reply(Struct, frozen=True):
    """The answer to a command: `result` is a count, 0, or a negative errno."""

    cookie: int
    result: int


class ImmediateEvent(NamedTuple):
    """An immediate of a peer arrived on the QP `qpn`."""

    qpn: int
    immediate: Immediate


class ProbeReply(Struct, frozen=True):
    """A commanded EV probe ended."""

    cookie: int
    probe: ProbeResult


class Notice(Struct, frozen=True):
    """A change of state of a QP, an EV, a plane or a port; see enum mrc_event_type."""

    type: EventType
    qpn: int
    ev_index: int
    port: int
    status: int
    reason: EventReason = EventReason.NONE
    at_ns: int = 0
    result: int = 0


class EventLoss(Struct, frozen=True):
    """The engine had no room for `count` events."""

    count: int


class Written(NamedTuple):
    """Writes have succeeded."""

    cookies: list[int]


EngineEvent = (
    Written | Completion | ImmediateEvent | Reply | ProbeReply | Notice | EventLoss | ContextWarning
)


# For speed. Indexed by the enum values, which count from 0: calling the enum class would take
# longer than the rest of a completion. A plain int compares faster than an enum member.
MOST_TRACED = 1 << 20  # entries at once; a trace has fewer
_STATUSES = tuple(WcStatus)
_OPCODES = tuple(WcOpcode)
_RECV_IMM = int(WcOpcode.RECV_IMM)
_WC = int(EventType.WC)


def decode(event: Any) -> EngineEvent:
    """A `struct mrc_event` as an object; raises ValueError for one that no engine makes."""
    if event.type == _WC:
        wc = event.wc
        if wc.opcode == _RECV_IMM:
            return ImmediateEvent(wc.qpn, Immediate(wc.imm, wc.bytes, wc.wr_id))
        return Completion(wc.wr_id, wc.qpn, wc.bytes, _STATUSES[wc.status], _OPCODES[wc.opcode])
    if event.type == EventType.REPLY:
        return Reply(event.cookie, event.result)
    if event.type == EventType.PROBE:
        rtt_ns = None if event.result else event.rtt_ns
        probe = ProbeResult(event.ev_index, -event.result, rtt_ns, event.status == 1)
        return ProbeReply(event.cookie, probe)
    if event.type == EventType.WARNING:
        kind = WarningKind(event.status)
        fault = kind is WarningKind.MEMORY_FAULT
        return ContextWarning(kind, event.port, event.cookie if fault else event.result)
    if event.type == EventType.LOST:
        return EventLoss(event.cookie)
    return Notice(
        EventType(event.type),
        event.qpn,
        event.ev_index,
        event.port,
        event.status,
        EventReason(event.reason),
        event.at_ns,
        event.result,
    )


class AnyEngine(Protocol):
    """An engine that takes commands and returns events, in this process or in another one."""

    fd: int
    """Descriptor that is readable when `poll` must be called."""
    polled: bool
    udp_port: int
    """The UDP port that peers send to."""

    def handle(self) -> CData:
        """The `mrc_ctx`; raises StateError unless it is in this process."""

    def source_port(self, port: int, tx_index: int) -> int:
        """The UDP source port of one transmit socket."""

    def submit(self, batch: Iterable[Submission]) -> int:
        """Queues items in order; returns how many there was room for."""

    def may_sleep(self) -> bool:
        """True when the event loop may wait for `fd`; False when it must call `poll` first."""

    def poll(self, events: deque[EngineEvent]) -> int:
        """Appends new events, and returns how many; POLL_BATCH: there may be more.

        After a MemoryError no event is lost: the next call goes on.
        """

    def run(self) -> int:
        """Runs one turn of a polled context; returns the number of events."""

    def close(self) -> None:
        """Ends it."""


class Engine:
    """Owns one `mrc_ctx`: its ports, sockets and rings, and its datapath thread unless polled."""

    def __init__(self, ports: Sequence[LocalPort | None], *, polled: bool, **sizes: Any) -> None:
        """Opens the sockets; raises OSError with one line that names the cause.

        `ports` has one item for each possible port; None: the port may open later. `sizes` are
        fields of `struct mrc_ctx_config`, `max_qps`, `readings` and `dscps`; 0 selects the default
        in mrc.h.
        """
        config = ffi.new("struct mrc_ctx_config *", configuration(ports, polled=polled, **sizes))
        code = ffi.new("int *")
        message = ffi.new("char[256]")
        self.forked = False
        self.polled = polled
        self._ctx: CData | None = lib.mrc_ctx_create(config, code, message, len(message))
        if self._ctx == ffi.NULL:
            cause = bytes(ffi.string(message)).decode("utf-8", "replace")
            raise OSError(-code[0], cause or os.strerror(-code[0]))
        # Garbage collection and interpreter exit also stop the thread before its memory is freed.
        self._end = weakref.finalize(self, lib.mrc_ctx_destroy, self._ctx)
        _opened.add(self)
        self._events = StructQueue("mrc_event", POLL_BATCH)
        self._cookies = ffi.new("uint64_t[]", POLL_BATCH)
        self._n_written = 0  # cookies that C has handed over, until they have become an event
        self._commands = ffi.new("struct mrc_command[]", SUBMIT_BATCH)
        self.fd = int(lib.mrc_ctx_fd(self._ctx))
        """Descriptor that is readable when `poll` must be called."""
        self.udp_port = int(lib.mrc_ctx_udp_port(self._ctx))
        """The UDP port that peers send to."""

    def handle(self) -> CData:
        """The `mrc_ctx`, for functions of csrc/msg/messages.h too; raises StateError."""
        if self._ctx is None:
            raise StateError(FORKED if self.forked else "the Context is closed")
        return self._ctx

    def source_port(self, port: int, tx_index: int) -> int:
        """The UDP source port of one transmit socket."""
        return int(lib.mrc_ctx_source_port(self.handle(), port, tx_index))

    def submit(self, batch: Iterable[Submission]) -> int:
        """Queues at most SUBMIT_BATCH items in order; returns how many fitted into the ring."""
        n = 0
        for n, each in enumerate(batch, 1):
            each.fill(self._commands, n - 1)
        return check(lib.mrc_ctx_submit(self._ctx or self.handle(), self._commands, n), "submit")

    def run(self) -> int:
        """Runs one turn of a polled context without sleeping; returns the number of events."""
        return check(lib.mrc_ctx_run(self.handle(), 0), "run")

    def may_sleep(self) -> bool:
        """True when the event loop may wait for `fd`; False when it must call `poll` first."""
        return not self.polled or bool(lib.mrc_ctx_arm(self.handle()))

    def poll(self, events: deque[EngineEvent]) -> int:
        """Runs the datapath if it has no thread, appends new events, and returns how many.

        If it returns POLL_BATCH, there may be more. After a MemoryError the next call goes on.
        """
        if self.polled and self._events.is_empty and self.run() == 0:
            return 0
        written = self._n_written
        if not written and self._events.is_empty:
            ctx = self._ctx or self.handle()
            written = check(lib.mrc_ctx_poll_writes(ctx, self._cookies, POLL_BATCH), "poll")
        if written:
            self._n_written = written
            events.append(Written(ffi.unpack(self._cookies, written)))
            self._n_written = 0
            if written == POLL_BATCH:
                return written
        return max(written, self._events.take(self._poll, decode, events))

    def _poll(self, events: CData, room: int) -> int:
        return check(lib.mrc_ctx_poll(self._ctx or self.handle(), events, room), "poll")

    def close(self) -> None:
        """Stops the datapath thread and waits for its end. Then registered memory is unused."""
        self._ctx = None
        self._end()


_opened: weakref.WeakSet[Engine] = weakref.WeakSet()


def _abandon_all() -> None:
    """In a child of fork: closes the child's descriptors. The parent's datapath goes on."""
    for engine in list(_opened):
        if engine._ctx is not None:
            engine.forked = True
            engine.close()


os.register_at_fork(after_in_child=_abandon_all)


def configuration(
    ports: Sequence[LocalPort | None],
    *,
    polled: bool,
    max_qps: int = 0,
    readings: int = 0,
    dscps: Mapping[str, int] | None = None,
    **sizes: int,
) -> dict[str, Any]:
    """The fields of a `struct mrc_ctx_config`, for arguments as of `Engine`."""
    count = len(ports)
    return {
        "engine": {
            "seed": secrets.randbits(64),
            "ports": count,
            "max_qps": max_qps,
            "readings": readings,
            "dscps": dscps or {},
        },
        "ports": [_port_fields(port) for port in ports],
        "n_ports": count,
        "polled": polled,
        **sizes,
    }


def _port_fields(port: LocalPort | None) -> dict[str, Any]:
    """The fields of a `struct mrc_port_config`."""
    if port is None:
        return {}
    return {
        "ifname": port.ifname.encode(),
        "address": pack_address(port.address.ip),
        "family": port.address.version,
        "any": int(port.any_address),
        "loose": int(port.loose),
        "tx_sockets": port.tx_sockets,
    }


def region_register(region: Region) -> Command:
    """Registers a memory region with the engine."""
    fields = {
        "op": CommandOp.MR_REGISTER,
        "address": region.address,
        "bytes": region.length,
        "key": region._key,
        "access": int(region._access),
    }
    return Command(fields, region._held)


def region_deregister(region: Region) -> Command:
    """Deregisters a memory region; allowed when no work request uses it."""
    return Command({"op": CommandOp.MR_DEREGISTER, "key": region._key}, region._held)


def port_open(number: int, port: LocalPort) -> tuple[Command, CData]:
    """Opens a port while the engine runs: the command that fills the returned `struct
    mrc_port_opening`, or its `cause` if it fails.
    """
    opening = native.new_struct("mrc_port_opening", config=_port_fields(port))
    fields = {"op": CommandOp.PORT_OPEN, "value": number, "pointer": opening}
    return Command(fields, opening), opening


def port_close(port: int) -> Command:
    """Closes the sockets of a port."""
    return Command({"op": CommandOp.PORT_CLOSE, "value": port})


def port_up(port: int, *, up: bool) -> Command:
    """Reports to the engine that the link of a port came up or went down."""
    return Command({"op": CommandOp.PORT_UP, "value": port, "key": int(up)})


def values(op: CommandOp, count: int) -> tuple[Command, Any]:
    """The command that fills the returned array with COUNTERS or DROPS."""
    array = native.new_values(count)
    return Command({"op": op, "pointer": array, "value": count}, array), array


def trace(count: int) -> tuple[Command, Any]:
    """The command that fills the returned array with the newest trace entries. Raises ArgumentError
    for more than any trace has.
    """
    if not 0 <= count <= MOST_TRACED:
        raise ArgumentError(f"count: {count} is not within 0..{MOST_TRACED}")
    array = native.new_array("mrc_trace_entry", count)
    return Command({"op": CommandOp.TRACE, "pointer": array, "value": count}, array), array
