# SPDX-License-Identifier: Apache-2.0
"""Payload that arrives over time, in bins of about a millisecond, as the datapath records it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mrc.binding import native
from mrc.binding.native import Command
from mrc.enums import CommandOp
from mrc.typed import Positive, Whole

MAX_BINS = 1 << 16
"""Bins of a recording. One that lasts longer has wider bins: each time it outgrows them, twice."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Payload bytes that arrived by each plane, bin after bin from the start on.

    All times are in ns, those named `_ns` alone since the start; `start_monotonic_ns` is of
    CLOCK_MONOTONIC, so it can be compared with other clocks of this machine only. A delivery is
    what the datapath placed in memory in one go. `first_ns` and `last_ns` are those of the first
    and the last delivery, None without any; `longest_gap_ns` is the longest time between one and
    the next, which began at `longest_gap_at_ns`, and 0 with fewer than two.
    """

    start_monotonic_ns: Whole
    duration_ns: Whole
    width_ns: Positive  # of a bin
    planes: Mapping[int, tuple[int, ...]]
    first_ns: Whole | None
    last_ns: Whole | None
    longest_gap_ns: Whole
    longest_gap_at_ns: Whole | None

    @property
    def bytes(self) -> tuple[int, ...]:
        """Of all planes, bin after bin."""
        return tuple(sum(column) for column in zip(*self.planes.values(), strict=True))


class RecordingMemory:
    """What the datapath fills in; it must live until the stop was answered."""

    def __init__(self, qpns: Sequence[int], ports: int, width_ns: int) -> None:
        """Without QPNs it is for every QP."""
        self._ports = ports
        self._qpns = native.ffi.new("uint32_t[]", list(qpns))
        self._bytes = native.new_values(MAX_BINS * ports)
        self._native: Any = native.new_struct("mrc_recording")
        self._native.qpns = self._qpns
        self._native.n_qps = len(qpns)
        self._native.bytes = self._bytes
        self._native.n_ports = ports
        self._native.n_bins = MAX_BINS
        self._native.width_ns = width_ns

    def start(self) -> Command:
        """The command that starts the recording."""
        return Command({"op": CommandOp.RECORD_START, "pointer": self._native}, self)

    def stop(self) -> Command:
        """The command that ends it; its reply gives the memory back."""
        return Command({"op": CommandOp.RECORD_STOP}, self)

    def read(self, planes: Iterable[int]) -> Recording:
        """What was recorded, once it is stopped."""
        filled = self._native
        start_ns, duration_ns = filled.start_ns, filled.end_ns - filled.start_ns
        bins = min(duration_ns // filled.width_ns + 1, MAX_BINS)
        rows = memoryview(native.ffi.buffer(self._bytes, bins * self._ports * 8)).cast("Q")
        came, gap_ns = filled.first_ns > 0, filled.longest_gap_ns
        return Recording(
            start_monotonic_ns=start_ns,
            duration_ns=duration_ns,
            width_ns=filled.width_ns,
            planes={plane: tuple(rows[plane - 1 :: self._ports]) for plane in planes},
            first_ns=filled.first_ns - start_ns if came else None,
            last_ns=filled.last_ns - start_ns if came else None,
            longest_gap_ns=gap_ns,
            longest_gap_at_ns=filled.longest_gap_at_ns - start_ns if gap_ns else None,
        )
