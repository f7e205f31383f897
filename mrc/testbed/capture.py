# SPDX-License-Identifier: Apache-2.0
"""Captures the packets at interfaces of a test bed from rings that the kernel fills, and writes the
file format of libpcap.

Between hosts of one machine the kernel moves whole bursts and leaves the checksums to an interface
that never computes them. This module cuts the bursts and computes the checksums, so every packet of
a capture has its own headers and a correct checksum.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import sys
import time
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import BinaryIO, Self

from msgspec import Struct

from mrc.cli.output import Output
from mrc.errors import NetlinkError
from mrc.linux import netns, system
from mrc.results import KEYS, Result
from mrc.testbed.build import LinkEnd
from mrc.testbed.faults import (
    HOST_DOWN,
    HOST_UP,
    T0_UP,
    T1_DOWN,
    T1_UP,
    T2_DOWN,
    Hop,
    all_hops_of,
)
from mrc.testbed.plan import BedPlan
from mrc.testbed.shape import MANAGEMENT
from mrc.units import counted, scaled

_SOL_PACKET = 263
_PACKET_RX_RING, _PACKET_STATISTICS, _PACKET_VERSION, _PACKET_VNET_HDR = 5, 6, 10, 15
_TPACKET_V3 = 2
_ETH_P_ALL = 3
_STATUS_USER = 1
_BUFFER_BYTES = 1 << 20

_BLOCK_BYTES, _BLOCKS = 1 << 19, 16
_FRAME_BYTES = 2048  # required by the kernel; TPACKET_V3 does not use it
_RETIRE_MS = 20
# Every ring has delivered its packets that are this old.
_SETTLED_NS = 3 * _RETIRE_MS * 1_000_000

_BLOCK = struct.Struct("=8xIII")  # status, packets, offset of the first
_PACKET = struct.Struct("=IIIIIIH")  # next, seconds, ns, bytes here, bytes, status, offset
_OFFLOAD = struct.Struct("=BBHHHH")

# Kind of a target -> the hops whose sending end is captured.
_CAPTURED = {
    "all": (HOST_UP,),
    "link": (HOST_UP,),
    "plane": (HOST_UP,),
    "uplink": (T0_UP,),
    "t0": (HOST_DOWN, T0_UP),
    "core": (T1_UP,),
    "t1": (T1_DOWN, T1_UP),
    "t2": (T2_DOWN,),
}


class Offload(Struct, frozen=True):
    """The work left to the interface: the fields of `struct virtio_net_hdr`."""

    flags: int
    gso_type: int
    header_bytes: int
    gso_bytes: int
    checksum_start: int
    checksum_offset: int


_NONE = Offload(0, 0, 0, 0, 0, 0)


class Captured(Result, frozen=True, kw_only=True, rename=KEYS):
    """`mrc testbed capture`."""

    packets: int
    """Packets written."""
    bytes: int
    """Size of the file."""
    dropped: int
    """Packets that the kernel dropped because the capture was too slow."""
    interfaces: tuple[str, ...]
    """Where packets were captured, as NODE:INTERFACE."""

    def tell(self, out: Output) -> None:
        told = f"{counted(self.packets, 'packet')}, {scaled(self.bytes, 'B')}"
        out.note(f"{told}, {self.dropped} dropped by the kernel")
        out.result(self)


def interfaces(plan: BedPlan, where: str) -> list[LinkEnd]:
    """Node and interface of each capture point for a host (its ports) or a fault target.

    Raises ValueError.
    """
    if where == MANAGEMENT:
        return [(where, link.upper_name) for link in plan.links if link.upper == where]
    if where in plan.configs:
        return [end for end in (hop.port for hop in Hop.every(plan.shape)) if end[0] == where]
    try:
        target = plan.shape.target(where).both
    except ValueError as exc:
        raise ValueError(f"{exc}, nor a host or mgmt") from exc
    kinds = _CAPTURED[target.kind]
    if plan.shape.is_emulated and kinds != (HOST_UP,):
        raise ValueError(
            f"{where} has no interface, because the switches of an emulated fabric are one "
            "process: capture a host or link:hH.P"
        )
    return [hop.port for hop in all_hops_of(target, plan.shape) if hop.kind in kinds]


def splits_bursts() -> bool:
    """Whether captures show the packets of a burst one by one.

    Linux before 6.2 drops UDP bursts at a ring with offload headers, so the ring has none there.
    Without these headers a capture shows the burst as one packet without a checksum.
    """
    return system.release() >= (6, 2)


class Ring:
    """Captures all packets at one interface, in and out, from now on. A context manager.

    Raises NetlinkError.
    """

    def __init__(self, namespace: str, interface: str) -> None:
        try:
            with netns.inside(namespace):
                self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            try:
                self._socket.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V3)
                self._offloads = splits_bursts()
                self._socket.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, int(self._offloads))
                size = _BLOCK_BYTES * _BLOCKS
                shape = (_BLOCK_BYTES, _BLOCKS, _FRAME_BYTES, size // _FRAME_BYTES)
                request = struct.pack("=7I", *shape, _RETIRE_MS, 0, 0)
                self._socket.setsockopt(_SOL_PACKET, _PACKET_RX_RING, request)
                self._memory = mmap.mmap(self._socket.fileno(), size)
                self._socket.bind((interface, _ETH_P_ALL))
            except OSError:
                self._socket.close()
                raise
        except OSError as exc:
            raise NetlinkError(f"cannot capture at {interface} in {namespace}: {exc}") from exc
        self._next = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.close()
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def exists(self) -> bool:
        """Whether the interface still exists. Clears the error of one that went down: as long as
        it stands, poll() returns at once.
        """
        self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return bool(self._socket.getsockname()[0])

    def read(self) -> Iterator[tuple[int, bytes, Offload]]:
        """Time in ns, frame and offload header, from every block that is full or old enough."""
        for _ in range(_BLOCKS):
            start = self._next * _BLOCK_BYTES
            status, count, offset = _BLOCK.unpack_from(self._memory, start)
            if not status & _STATUS_USER:
                return
            # Arm may reorder the next loads before this one, but only within some hundred
            # instructions: Python runs thousands in between. sim/emu.c has barriers.
            at = start + offset
            for _ in range(count):
                following, seconds, ns, length, _, _, mac = _PACKET.unpack_from(self._memory, at)
                frame = at + mac
                offload = _NONE
                if self._offloads:
                    offload = Offload(*_OFFLOAD.unpack_from(self._memory, frame - _OFFLOAD.size))
                yield seconds * 10**9 + ns, self._memory[frame : frame + length], offload
                at += following
            struct.pack_into("=I", self._memory, start + 8, 0)
            self._next = (self._next + 1) % _BLOCKS

    def dropped(self) -> int:
        """Frames that a full ring lost since the last call."""
        stats = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 12)
        return int(struct.unpack("=3I", stats)[1])


@contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    """The file of a capture; `-`: stdout."""
    target = os.dup(sys.stdout.fileno()) if name == "-" else name
    file = open(target, "wb", buffering=_BUFFER_BYTES)  # noqa: SIM115  closed below
    try:
        yield file
    finally:
        with suppress(BrokenPipeError):
            file.close()


class Capture(Struct):
    """Writes the packets of several interfaces into one file, ordered by time."""

    file: BinaryIO
    snap_bytes: int
    limit: int | None
    """largest number of packets; None: no limit"""
    written_packets: int = 0
    written_bytes: int = 0

    def run(
        self, plan: BedPlan, where: Sequence[LinkEnd], begun: Callable[[], None],
        has_ended: Callable[[], bool],
    ) -> Captured:  # fmt: skip
        """Captures until `has_ended()` or the limit. Calls `begun` once all rings are open; no
        packet is from before, when some interfaces would lack theirs.

        Raises NetlinkError if an interface disappears, BrokenPipeError if the file's reader does.
        """
        pending: list[tuple[int, bytes, Offload]] = []
        with ExitStack() as stack:
            rings = [
                stack.enter_context(Ring(plan.nodes[node].namespace, interface))
                for node, interface in where
            ]
            begin_ns = time.time_ns()
            write_header(self.file, self.snap_bytes)
            self.file.flush()
            poll = select.poll()
            for ring in rings:
                poll.register(ring, select.POLLIN)
            poll.register(self.file, 0)  # errors only: the reader of a pipe is gone
            begun()
            is_over = False
            while not is_over:
                if (self.file.fileno(), select.POLLERR) in poll.poll(_RETIRE_MS):
                    raise BrokenPipeError
                # Always, for the kernel reports an interface that goes down, not its removal then.
                lost = [end for ring, end in zip(rings, where, strict=True) if not ring.exists()]
                # Every ring has all packets until then when it is read, however long that takes.
                settled_ns = time.time_ns() - _SETTLED_NS
                if lost or has_ended():
                    settled_ns = time.time_ns()
                    time.sleep(_SETTLED_NS / 1e9)  # the kernel delivers its unfinished blocks
                    is_over = True
                for ring in rings:
                    pending += (each for each in ring.read() if each[0] >= begin_ns)
                pending.sort(key=lambda each: each[0])
                ready = bisect(pending, settled_ns, key=lambda each: each[0])
                for each in pending[:ready]:
                    self._write(*each)
                del pending[:ready]
                self.file.flush()
                is_over = is_over or self._is_full()
            dropped = sum(ring.dropped() for ring in rings)
        for node, interface in lost:
            raise NetlinkError(f"{node}:{interface} is gone: the test bed was taken down")
        return Captured(
            packets=self.written_packets,
            bytes=self.written_bytes,
            dropped=dropped,
            interfaces=tuple(map(":".join, where)),
        )

    def _is_full(self) -> bool:
        return self.limit is not None and self.written_packets >= self.limit

    def _write(self, time_ns: int, frame: bytes, offload: Offload) -> None:
        for packet in on_the_wire(frame, offload):
            if not self._is_full():
                write_packet(self.file, time_ns, packet, self.snap_bytes)
                self.written_packets += 1
                self.written_bytes += len(packet)


# ---- Files of libpcap ----------------------------------------------------------------------------


_NANOSECONDS = 0xA1B23C4D
_LINKTYPE_ETHERNET = 1

_NEEDS_CHECKSUM = 1  # VIRTIO_NET_HDR_F_NEEDS_CSUM
_GSO_NONE, _GSO_UDP = 0, 5  # VIRTIO_NET_HDR_GSO_NONE, _UDP_L4

_ETHERNET_BYTES, _IPV6_BYTES, _UDP_BYTES = 14, 40, 8
_IN_IPV4, _UDP, _IN_IPV6 = 4, 17, 41
_EXTENSIONS = (0, 43, 60)  # hop-by-hop and destination options, routing


def write_header(file: BinaryIO, snap_bytes: int) -> None:
    header = (_NANOSECONDS, 2, 4, 0, 0, snap_bytes, _LINKTYPE_ETHERNET)
    file.write(struct.pack("=IHHiIII", *header))


def write_packet(file: BinaryIO, time_ns: int, frame: bytes, snap_bytes: int) -> None:
    kept = frame[:snap_bytes]
    seconds, rest_ns = divmod(time_ns, 10**9)
    file.write(struct.pack("=IIII", seconds, rest_ns, len(kept), len(frame)) + kept)


def on_the_wire(frame: bytes, offload: Offload) -> Iterator[bytes]:
    """The packets of a frame. A TCP burst stays whole."""
    if not offload.flags & _NEEDS_CHECKSUM:
        yield frame
    elif offload.gso_type == _GSO_NONE:
        # The field of a missing checksum holds the sum of the pseudo header.
        start, made = offload.checksum_start, bytearray(frame)
        struct.pack_into("!H", made, start + offload.checksum_offset, 0xFFFF - _sum(frame[start:]))
        yield bytes(made)
    elif offload.gso_type == _GSO_UDP and offload.gso_bytes:
        yield from _cut(frame, offload)
    else:
        yield frame


def _cut(frame: bytes, offload: Offload) -> Iterator[bytes]:
    udp = offload.checksum_start
    headers = _ip_headers(frame)
    payload = frame[udp + _UDP_BYTES :]
    for number, start in enumerate(range(0, len(payload), offload.gso_bytes)):
        part = payload[start : start + offload.gso_bytes]
        head = bytearray(frame[: udp + _UDP_BYTES])
        for at in headers:
            _set_length(head, at, len(head) + len(part) - at, number)
        length = _UDP_BYTES + len(part)
        struct.pack_into("!HH", head, udp + 4, length, 0)
        at = headers[-1]
        ends = bytes(head[at + 8 : at + 40] if head[at] >> 4 == 6 else head[at + 12 : at + 20])
        pseudo = ends + struct.pack("!HH", _UDP, length)
        struct.pack_into("!H", head, udp + 6, 0xFFFF - _sum(pseudo + head[udp:] + part))
        yield bytes(head) + part


def _ip_headers(frame: bytes) -> list[int]:
    """The offsets of the IP headers, the outermost first."""
    found = []
    at, kind = _ETHERNET_BYTES, _IN_IPV6 if frame[12:14] == b"\x86\xdd" else _IN_IPV4
    while kind in (_IN_IPV4, _IN_IPV6):
        found.append(at)
        if kind == _IN_IPV4:
            at, kind = at + (frame[at] & 0xF) * 4, frame[at + 9]
            continue
        at, kind = at + _IPV6_BYTES, frame[at + 6]
        while kind in _EXTENSIONS:
            at, kind = at + (frame[at + 1] + 1) * 8, frame[at]
    return found


def _set_length(head: bytearray, at: int, length: int, number: int) -> None:
    """Sets the length of the IP header at `at`, for IPv4 also its identification and checksum."""
    if head[at] >> 4 == 6:
        struct.pack_into("!H", head, at + 4, length - _IPV6_BYTES)
        return
    ident = (struct.unpack_from("!H", head, at + 4)[0] + number) & 0xFFFF
    struct.pack_into("!HH", head, at + 2, length, ident)
    struct.pack_into("!H", head, at + 10, 0)
    struct.pack_into("!H", head, at + 10, 0xFFFF - _sum(head[at : at + (head[at] & 0xF) * 4]))


def _sum(data: bytes | bytearray) -> int:
    """The ones' complement sum of all 16-bit words, because 2^16 is 1 modulo 65535.

    The sum is never 0xFFFF, so no checksum is 0. To UDP, 0 means no checksum.
    """
    return (int.from_bytes(data) << 8 * (len(data) % 2)) % 0xFFFF
