# SPDX-License-Identifier: Apache-2.0
"""Wraps the compiled simulator: one fabric in virtual time, and its records. No other module
imports it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, ClassVar, TypeVar, overload

from msgspec import Struct

from mrc._sim import ffi as ffi
from mrc._sim import lib as lib
from mrc.errors import ConfigError
from mrc.sim.results import Stats
from mrc.testbed.tiers import TimedFault
from mrc.testbed.topology import Target

ROUTING = {"source-routes": lib.MRC_SIM_SOURCE_ROUTES, "ecmp": lib.MRC_SIM_ECMP}
PROBING = {
    False: lib.MRC_SIM_UNPROBED,
    True: lib.MRC_SIM_PROBED,
    "computed": lib.MRC_SIM_COMPUTED,
}
MRC: int = lib.MRC_SIM_MRC
TRANSPORTS = {"go-back-n": lib.MRC_SIM_GO_BACK_N}  # all other kinds are MRC
CLASSES = {
    "all": lib.MRC_SIM_EVERY_CLASS,
    "control": lib.MRC_SIM_CONTROL_CLASS,
    "data": lib.MRC_SIM_DATA_CLASS,
}
TARGETS = {
    "all": lib.MRC_SIM_ALL,
    "plane": lib.MRC_SIM_PLANE,
    "t0": lib.MRC_SIM_T0,
    "t1": lib.MRC_SIM_T1,
    "t2": lib.MRC_SIM_T2,
    "uplink": lib.MRC_SIM_UPLINK,
    "core": lib.MRC_SIM_CORE,
    "link": lib.MRC_SIM_PORT,
}
DIRECTIONS = {
    "": lib.MRC_SIM_BOTH,
    Target.UP: lib.MRC_SIM_UPWARD,
    Target.DOWN: lib.MRC_SIM_DOWNWARD,
}
TOPOLOGY = [name for name, _ in ffi.typeof("struct mrc_topology").fields]
"""What a fabric is; each field has the name that it has in mrc.fabric, but for `trims`."""
KINDS: dict[str, int] = {kind: getattr(lib, f"MRC_SIM_{kind.upper()}") for kind in TimedFault.KINDS}


class FlowInfo(Struct, frozen=True):
    """Totals of one flow since the start; the fields of `struct mrc_sim_flow_info`."""

    first_ns: int
    last_ns: int
    posted: int
    completed: int
    failed: int
    received_bytes: int
    sent_packets: int
    retransmitted_packets: int
    spurious_packets: int
    repeated_packets: int
    lost_packets: int
    rtt_ns: int


class Sample(Struct, frozen=True):
    """Totals of a flow at one time."""

    now_ns: int
    received_bytes: int
    retransmitted_packets: int
    flow: int


class EngineEvent(Struct, frozen=True):
    """An event of the engine at one end of a flow."""

    EV_STATE: ClassVar[int] = lib.MRC_SIM_EV_STATE
    PLANE_STATE: ClassVar[int] = lib.MRC_SIM_PLANE_STATE
    QP_ERROR: ClassVar[int] = lib.MRC_SIM_QP_ERROR
    PLANE_SHARE: ClassVar[int] = lib.MRC_SIM_PLANE_SHARE

    now_ns: int
    flow: int
    path: int
    plane: int
    type: int
    status: int
    receiver: int
    percent: int


class WriteRecord(Struct, frozen=True):
    """One write: `wanted_ns` is when the traffic made it due."""

    wanted_ns: int
    done_ns: int
    flow: int


class PortInfo(Struct, frozen=True):
    """One direction of a link."""

    busy_ns: int
    peak_bytes: int
    trimmed: int
    dropped: int
    marked: int


_Row = TypeVar("_Row", FlowInfo, Sample, EngineEvent, WriteRecord, PortInfo)


_STRUCTS: dict[type[Struct], str] = {
    FlowInfo: "struct mrc_sim_flow_info",
    Sample: "struct mrc_sim_sample",
    EngineEvent: "struct mrc_sim_event",
    WriteRecord: "struct mrc_sim_message",
    PortInfo: "struct mrc_sim_port_info",
}


def _read(kind: type[_Row], struct: Any) -> _Row:
    row: _Row = kind(*(getattr(struct, name) for name in kind.__struct_fields__))
    return row


class Rows(Sequence[_Row]):
    """Rows as the simulator wrote them; each becomes an object only when it is read."""

    def __init__(self, kind: type[_Row], data: bytes) -> None:
        self._kind: type[_Row] = kind
        self._data = data
        self._rows = ffi.from_buffer(f"{_STRUCTS[kind]}[]", data)

    @overload
    def __getitem__(self, at: int) -> _Row: ...
    @overload
    def __getitem__(self, at: slice) -> list[_Row]: ...
    def __getitem__(self, at: int | slice) -> _Row | list[_Row]:
        if isinstance(at, slice):
            return [self[i] for i in range(len(self))[at]]
        row: _Row = _read(self._kind, self._rows[range(len(self))[at]])
        return row

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[_Row]:
        return (_read(self._kind, row) for row in self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (self._kind, self._data)

    def column(self, name: str, first: int = 0, step: int = 1) -> list[int]:
        """A field of 64 bits of each row, or of every `step`-th from the `first` on."""
        struct = _STRUCTS[self._kind]
        words = ffi.sizeof(struct) // 8
        at = first * words + ffi.offsetof(struct, name) // 8
        found: list[int] = memoryview(self._data).cast("Q")[at :: step * words].tolist()
        return found


class Simulation:
    """Owns one `mrc_sim`. A context manager."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Builds the fabric of a `struct mrc_sim_config` given as a dict."""
        given = ffi.new("struct mrc_sim_config *", dict(config))
        self._sim, self._traced = ffi.NULL, ""
        if (refusal := lib.mrc_sim_refusal(given)) != ffi.NULL:
            raise ConfigError(ffi.string(refusal).decode())
        self._sim = lib.mrc_sim_create(given)

    def __enter__(self) -> Simulation:
        return self

    def __exit__(self, *_: object) -> None:
        lib.mrc_sim_destroy(self._sim)
        self._sim = ffi.NULL

    def add_flow(self, config: Mapping[str, int]) -> int:
        """Adds a `struct mrc_sim_flow_config` and returns its number."""
        number = int(
            lib.mrc_sim_add_flow(self._sim, ffi.new("struct mrc_sim_flow_config *", config))
        )
        if number < 0:
            raise ConfigError(f"the simulator rejects the flow {dict(config)}")
        return number

    def set_links(self, change: Mapping[str, int]) -> None:
        """Sets the rate or delay that links have without faults, from a `struct mrc_sim_fault`."""
        if lib.mrc_sim_set_links(self._sim, ffi.new("struct mrc_sim_fault *", change)) < 0:
            raise ConfigError(f"the simulator rejects the links {dict(change)}")

    def remove_links(self, target: Mapping[str, int]) -> None:
        """Removes the links of a target, given as in a `struct mrc_sim_fault`, before any flow."""
        if lib.mrc_sim_remove_links(self._sim, ffi.new("struct mrc_sim_fault *", target)) < 0:
            raise ConfigError(f"the simulator cannot remove {dict(target)}")

    def add_fault(self, fault: Mapping[str, int]) -> None:
        """Adds a `struct mrc_sim_fault`."""
        if lib.mrc_sim_add_fault(self._sim, ffi.new("struct mrc_sim_fault *", fault)) < 0:
            raise ConfigError(f"the simulator rejects the fault {dict(fault)}")

    def trace_to(self, path: str) -> None:
        """Writes a line for every packet sent, lost, trimmed or delivered from now on."""
        self._traced = path
        self._check_trace(lib.mrc_sim_trace_to(self._sim, os.fsencode(path)))

    def end_trace(self) -> None:
        """Closes the trace; raises OSError if it is not whole."""
        self._check_trace(lib.mrc_sim_end_trace(self._sim))

    def _check_trace(self, code: int) -> None:
        if code < 0:
            raise OSError(-code, os.strerror(-code), self._traced)

    def run(self, until_ns: int) -> bool:
        """Runs until `until_ns` or until every write has ended; True if every write has ended."""
        return bool(lib.mrc_sim_run(self._sim, until_ns))

    def stats(self) -> Stats:
        """Totals of the whole fabric since the start: `struct mrc_sim_stats`."""
        struct = ffi.new("struct mrc_sim_stats *")
        lib.mrc_sim_stats(self._sim, struct)
        totals = {name: getattr(struct, name) for name in Stats.__struct_fields__}
        totals["first_lost_ns"] = struct.first_lost_ns or None
        totals["trace"] = f"{struct.trace:016x}"
        return Stats(**totals)

    def received_bytes(self) -> int:
        """Payload that has arrived in all flows but those of TCP."""
        return int(lib.mrc_sim_received_bytes(self._sim))

    def flows(self, count: int) -> Rows[FlowInfo]:
        """The first `count` flows."""
        rows = ffi.new("struct mrc_sim_flow_info[]", count)
        for number in range(count):
            if lib.mrc_sim_flow(self._sim, number, rows + number) < 0:
                raise IndexError(number)
        return Rows(FlowInfo, bytes(ffi.buffer(rows)))

    def last_hops(self, hosts: Sequence[int], planes: Sequence[int]) -> Rows[PortInfo]:
        """The ports of T0s towards these hosts, each in all these planes."""
        rows = ffi.new("struct mrc_sim_port_info[]", len(hosts) * len(planes))
        for number, (host, plane) in enumerate(product(hosts, planes)):
            if lib.mrc_sim_last_hop(self._sim, host, plane, rows + number) < 0:
                raise IndexError((host, plane))
        return Rows(PortInfo, bytes(ffi.buffer(rows)))

    def inner_ports(self, planes: Sequence[int]) -> Rows[PortInfo]:
        """The ports of all links between switches of these planes."""
        found = []
        for plane in planes:
            count = lib.mrc_sim_inner_ports(self._sim, plane, ffi.NULL, 0)
            rows = ffi.new("struct mrc_sim_port_info[]", count)
            lib.mrc_sim_inner_ports(self._sim, plane, rows, count)
            found.append(bytes(ffi.buffer(rows)))
        return Rows(PortInfo, b"".join(found))

    def samples(self) -> Rows[Sample]:
        """The flows in turn, at one time after the other."""
        return self._rows(Sample, lib.mrc_sim_samples)

    def plane_samples(self, plane: int) -> list[int]:
        """Payload bytes received in a plane at each sample, if the config has samples_planes."""
        count = lib.mrc_sim_plane_samples(self._sim, plane, ffi.NULL, 0)
        rows = ffi.new("uint64_t[]", max(count, 1))
        lib.mrc_sim_plane_samples(self._sim, plane, rows, count)
        return list(rows[0:count])

    def plane_bytes(self, flow: int, plane: int) -> int:
        """Payload bytes of a flow received in a plane since the start."""
        return int(lib.mrc_sim_plane_bytes(self._sim, flow, plane))

    def events(self) -> Rows[EngineEvent]:
        return self._rows(EngineEvent, lib.mrc_sim_events)

    def messages(self) -> Rows[WriteRecord]:
        return self._rows(WriteRecord, lib.mrc_sim_messages)

    def _rows(self, kind: type[_Row], query: Callable[..., int]) -> Rows[_Row]:
        count = query(self._sim, ffi.NULL, 0)
        rows = ffi.new(f"{_STRUCTS[kind]}[]", count)
        query(self._sim, rows, count)
        return Rows(kind, bytes(ffi.buffer(rows)))
