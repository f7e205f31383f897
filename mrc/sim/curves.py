# SPDX-License-Identifier: Apache-2.0
"""The samples of all flows, kept as the simulator wrote them."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import TypeVar, overload

from msgspec import Struct

from mrc.sim.native import FlowInfo, PortInfo, Rows, Sample

T = TypeVar("T")

AT_HAND = 1024
"""Flows whose samples are kept as objects, because checks read them often. More take memory."""


class Curve(Struct, frozen=True):
    """Payload bytes of a flow that have arrived, over time."""

    times_ns: tuple[int, ...]
    bytes: tuple[int, ...]

    def at(self, now_ns: int) -> float:
        """Bytes at a time, interpolated linearly between two samples."""
        i = bisect_right(self.times_ns, now_ns)
        if i == len(self.times_ns):
            return self.bytes[-1]
        before_ns, before = (self.times_ns[i - 1], self.bytes[i - 1]) if i else (0, 0)
        part = (now_ns - before_ns) / (self.times_ns[i] - before_ns)
        return before + part * (self.bytes[i] - before)


class Recorded(Struct, frozen=True):
    """The samples of all flows, taken at the same times, and the end of the run as a last one."""

    infos: Rows[FlowInfo]
    samples: Rows[Sample]
    times_ns: tuple[int, ...]

    @classmethod
    def of(cls, infos: Rows[FlowInfo], samples: Rows[Sample], end_ns: int) -> Recorded:
        times = samples.column("now_ns", 0, len(infos))
        return cls(infos, samples, (*times, *([end_ns] if not times or times[-1] < end_ns else ())))

    def column(self, name: str, flow: int) -> tuple[int, ...]:
        """A field of a flow at each time."""
        found = self.samples.column(name, flow, len(self.infos))
        if len(found) < len(self.times_ns):
            found.append(getattr(self.infos[flow], name))
        return tuple(found)


class _OfFlows(Sequence[T]):
    """Something of each flow, made when it is read."""

    def __init__(self, recorded: Recorded, make: Callable[[Recorded, int], T]) -> None:
        self._recorded, self._make = recorded, make

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        flows = range(len(self))[at]
        if isinstance(flows, range):
            return [self[i] for i in flows]
        return self._make(self._recorded, flows)

    def __len__(self) -> int:
        return len(self._recorded.infos)


def curves(recorded: Recorded) -> Sequence[Curve]:
    """The curve of each flow."""
    return _at_hand(_OfFlows(recorded, _curve))


def retransmitted(recorded: Recorded) -> Sequence[tuple[int, ...]]:
    """The packets that each flow sent again, at the times of its curve."""
    return _at_hand(_OfFlows(recorded, _retransmitted))


def _at_hand(found: Sequence[T]) -> Sequence[T]:
    return tuple(found) if len(found) <= AT_HAND else found


def _curve(recorded: Recorded, flow: int) -> Curve:
    return Curve(recorded.times_ns, recorded.column("received_bytes", flow))


def _retransmitted(recorded: Recorded, flow: int) -> tuple[int, ...]:
    return recorded.column("retransmitted_packets", flow)


class LastHops(Mapping[tuple[int, int], PortInfo]):
    """The port of a T0 to each host that receives, by host and plane; made when it is read."""

    def __init__(self, hosts: array[int], planes: range, ports: Rows[PortInfo]) -> None:
        self._hosts, self._planes, self._ports = hosts, planes, ports

    def __getitem__(self, key: tuple[int, int]) -> PortInfo:
        host, plane = key
        at = bisect_left(self._hosts, host)
        if plane not in self._planes or at == len(self._hosts) or self._hosts[at] != host:
            raise KeyError(key)
        return self._ports[at * len(self._planes) + self._planes.index(plane)]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return product(self._hosts, self._planes)

    def __len__(self) -> int:
        return len(self._ports)
