# SPDX-License-Identifier: Apache-2.0
"""Frames of a capture: pcap and pcapng files, and live ones of an interface; and the UDP payload in
a frame: Ethernet, VLAN, IP, SRv6, IP in IP and VXLAN.

Any bytes of a frame give a payload or None, and no read is beyond their end.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Collection, Iterator
from ipaddress import IPv4Address, IPv6Address
from typing import BinaryIO, NamedTuple, Self

from msgspec import Struct

from mrc.dissect.packet import IpAddress, Packet, UdpFlow, split
from mrc.errors import BadFileError, StateError

_MOST_BYTES = 16 << 20  # of a frame or block: a larger one is no capture
_EVERYTHING = 0x0003  # ETH_P_ALL
_ARPHRD_ETHER, _ARPHRD_LOOPBACK = 1, 772
_PACKET_OUTGOING = 4
_SOL_PACKET, _PACKET_STATISTICS = 263, 6
_SO_TIMESTAMPNS = 64  # with a time of 64 bits
_MOST_LIVE_BYTES = 1 << 18
_BUFFER_BYTES = 8 << 20


class CaptureError(BadFileError):
    """A file is no capture, or cannot be read."""


class CapturedFrame(Struct, frozen=True):
    seconds: float  # since the epoch
    link: int  # LINKTYPE_ of pcap
    data: bytes
    missing: int = 0  # bytes at its end that the capture left out

    @staticmethod
    def of_file(name: str) -> Iterator[CapturedFrame]:
        """The frames of the file of this name. Raises CaptureError."""
        try:
            with open(name, "rb") as file:
                yield from read(file, name)
        except OSError as error:
            raise CaptureError(f"{name}: {(error.strerror or str(error)).lower()}") from error

    def packets(
        self, ports: Collection[int] | None, usual: int | None = None
    ) -> Iterator[tuple[UdpFlow, Packet, int, int]]:
        """The MRC packets of its innermost UDP datagram, which is one, or a burst of several: flow
        and packet, the place in the burst from 1, and how many it has. Of a datagram to one of
        these ports; without ports, to the `usual` one, or of one that begins as MRC.
        """
        found = udp_of(self.data, self.link)
        if found is None:
            return
        flow, payload = found
        is_usual = ports is None and flow.dport == usual
        if not is_usual and not flow.carries_mrc(payload, ports):
            return
        parts = split(payload)
        for part, piece in enumerate(parts, 1):
            missing = self.missing if part == len(parts) else 0
            yield flow, Packet.decode(piece, flow, missing=missing), part, len(parts)


def read(file: BinaryIO, name: str) -> Iterator[CapturedFrame]:
    """The frames of a file; an incomplete last one ends it. Raises CaptureError."""
    magic = file.read(4)
    if magic == b"\x0a\x0d\x0d\x0a":
        yield from _pcapng(file, name, magic)
        return
    for order in "<>":
        for number, unit in ((0xA1B2C3D4, 1e-6), (0xA1B23C4D, 1e-9)):
            if magic == struct.pack(f"{order}I", number):
                yield from _pcap(file, name, order, unit)
                return
    raise CaptureError(f"{name}: is no capture of tcpdump, tshark or dumpcap (pcap or pcapng)")


def _pcap(file: BinaryIO, name: str, order: str, unit: float) -> Iterator[CapturedFrame]:
    rest = file.read(20)
    if len(rest) < 20:
        return
    link = struct.unpack(f"{order}I", rest[16:])[0] & 0xFFFF
    record = struct.Struct(f"{order}IIII")
    while len(header := file.read(record.size)) == record.size:
        seconds, fraction, length, whole = record.unpack(header)
        if length > _MOST_BYTES:
            raise CaptureError(f"{name}: is damaged: a packet of {length} bytes")
        data = file.read(length)
        if len(data) < length:
            return
        yield CapturedFrame(seconds + fraction * unit, link, data, max(0, whole - length))


def _pcapng(file: BinaryIO, name: str, first: bytes) -> Iterator[CapturedFrame]:
    order, links, units = "<", list[int](), list[float]()
    kind_bytes = first
    while len(kind_bytes) == 4:
        start = file.read(4)
        if kind_bytes == first:  # a section, which says its byte order
            magic = file.read(4)
            order = "<" if magic == b"\x4d\x3c\x2b\x1a" else ">"
            links, units = [], []
            already = 4
        else:
            already = 0
        if len(start) < 4:
            return
        (length,) = struct.unpack(f"{order}I", start)
        if not 12 + already <= length <= _MOST_BYTES or length % 4:
            raise CaptureError(f"{name}: is damaged: a block of {length} bytes")
        body = file.read(length - 12 - already)
        if len(body) + 12 + already < length or len(file.read(4)) < 4:
            return
        (kind,) = struct.unpack(f"{order}I", kind_bytes)
        if kind == 1 and len(body) >= 8:
            links.append(struct.unpack(f"{order}H", body[:2])[0])
            units.append(_resolution(body[8:], order))
        elif kind == 6 and len(body) >= 20:
            port, high, low, captured, whole = struct.unpack(f"{order}IIIII", body[:20])
            if port < len(links):
                seconds = (high << 32 | low) * units[port]
                data = body[20 : 20 + captured]
                yield CapturedFrame(seconds, links[port], data, max(0, whole - len(data)))
        elif kind == 3 and len(body) >= 4 and links:
            (whole,) = struct.unpack(f"{order}I", body[:4])
            data = body[4 : 4 + whole]
            yield CapturedFrame(0.0, links[0], data, max(0, whole - len(data)))
        kind_bytes = file.read(4)


def _resolution(options: bytes, order: str) -> float:
    """Seconds of a unit of time: option 9 of an interface."""
    while len(options) >= 4:
        code, length = struct.unpack(f"{order}HH", options[:4])
        if code == 0:
            break
        if code == 9 and length == 1 and len(options) >= 5:
            power = options[4]
            return float(2 ** -(power & 0x7F)) if power & 0x80 else float(10**-power)
        options = options[4 + (length + 3) // 4 * 4 :]
    return 1e-6


class LiveCapture:
    """The frames of an interface from now on. A context manager. Raises StateError."""

    def __init__(self, interface: str) -> None:
        try:
            # Without a protocol: before it is bound it would take the frames of all interfaces.
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        except PermissionError:
            raise StateError(f"cannot capture on {interface}: run it as root") from None
        try:
            self._socket.bind((interface, _EVERYTHING))
            kind = self._socket.getsockname()[3]
            if kind not in (_ARPHRD_ETHER, _ARPHRD_LOOPBACK):
                raise StateError(f"cannot capture on {interface}: it is no Ethernet interface")
            # On a loopback every frame goes out and comes in: one of both is enough.
            self._shows_sent = kind != _ARPHRD_LOOPBACK
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        except OSError as error:
            self._socket.close()
            why = os.strerror(error.errno or 0).lower()
            raise StateError(f"cannot capture on {interface}: {why}") from error
        except StateError:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def __iter__(self) -> Iterator[CapturedFrame]:
        while True:
            data, ancillary, _, sender = self._socket.recvmsg(_MOST_LIVE_BYTES, 64)
            if sender[2] != _PACKET_OUTGOING or self._shows_sent:
                yield CapturedFrame(_seconds(ancillary), ETHERNET, data)

    def lost(self) -> int:
        """Frames that this program was too slow for."""
        counts = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        return int(struct.unpack("=II", counts)[1])


def _seconds(ancillary: list[tuple[int, int, bytes]]) -> float:
    """When the kernel saw the frame."""
    for _, kind, data in ancillary:
        if kind == _SO_TIMESTAMPNS:
            seconds, ns = struct.unpack("=qq", data[:16])
            return float(seconds + ns * 1e-9)
    return time.time()


# ---- Frames --------------------------------------------------------------------------------------


ETHERNET, RAW, LINUX_SLL, IPV4, IPV6, LINUX_SLL2 = 1, 101, 113, 228, 229, 276
_ETHERTYPES = {0x0800: 4, 0x86DD: 6}
_VLANS = (0x8100, 0x88A8)
_UDP, _IPIP, _IPV6_IN_IP = 17, 4, 41
_EXTENSIONS = (0, 43, 60)  # hop-by-hop, routing (SRv6), destination options
_CE = 3
_TRIMMED = (0x07, 0x0B)  # DSCPs of csrc/core/wire.h
_MOST_PADDING = 60 - 42 + 4 + 1  # an empty datagram over IPv4, and a frame check sequence
_MOST_UDP_BYTES = 0xFFFF
_VXLAN_PORT, _VXLAN_BYTES = 4789, 8
_MOST_LAYERS = 8  # of IP in IP and extensions


def udp_of(frame: bytes, link: int) -> tuple[UdpFlow, bytes] | None:
    """Flow and payload of the innermost UDP datagram; None where there is none."""
    at, version = _network(frame, link)
    carrier: IpAddress | None = None
    ce = False
    for _ in range(_MOST_LAYERS):
        ip = _ipv4(frame, at) if version == 4 else _ipv6(frame, at) if version == 6 else None
        if ip is None:
            return None
        ce = ce or ip.tclass & 3 == _CE  # switches mark the outer header
        if ip.protocol == _UDP:
            found = _udp(frame, ip, carrier, ce=ce)
            if found is None or found[0].dport != _VXLAN_PORT:
                return found
            frame = found[1][_VXLAN_BYTES:]
            at, version = _network(frame, ETHERNET)
            continue
        if ip.protocol not in (_IPIP, _IPV6_IN_IP):
            return None
        carrier = ip.destination
        at, version = ip.end, 4 if ip.protocol == _IPIP else 6
    return None


class _Ip(NamedTuple):
    source: IpAddress
    destination: IpAddress
    protocol: int
    end: int  # where its payload begins
    tclass: int
    flow_label: int = 0
    fragment: bytes = b""


def _network(frame: bytes, link: int) -> tuple[int, int]:
    """Offset and version of the IP header; version 0: none."""
    if link in (RAW, IPV4, IPV6):
        return 0, frame[0] >> 4 if frame else 0
    at = {ETHERNET: 12, LINUX_SLL: 14, LINUX_SLL2: 0}.get(link)
    if at is None or len(frame) < at + 2:
        return 0, 0
    kind = int.from_bytes(frame[at : at + 2], "big")
    if link == LINUX_SLL2:
        return 20, _ETHERTYPES.get(kind, 0)
    while kind in _VLANS and len(frame) >= at + 6:
        at += 4
        kind = int.from_bytes(frame[at : at + 2], "big")
    return at + 2, _ETHERTYPES.get(kind, 0)


def _ipv4(frame: bytes, at: int) -> _Ip | None:
    header = frame[at : at + 20]
    if len(header) < 20 or header[0] >> 4 != 4 or int.from_bytes(header[6:8], "big") & 0x1FFF:
        return None
    end = at + 4 * (header[0] & 0x0F)
    source, destination = IPv4Address(header[12:16]), IPv4Address(header[16:20])
    return _Ip(source, destination, header[9], end, header[1], fragment=header[4:8])


def _ipv6(frame: bytes, at: int) -> _Ip | None:
    header = frame[at : at + 40]
    if len(header) < 40 or header[0] >> 4 != 6:
        return None
    protocol, end = header[6], at + 40
    for _ in range(_MOST_LAYERS):
        if protocol not in _EXTENSIONS or len(frame) < end + 2:
            break
        protocol, end = frame[end], end + 8 * (frame[end + 1] + 1)
    first = int.from_bytes(header[:4], "big")
    source, destination = IPv6Address(header[8:24]), IPv6Address(header[24:40])
    return _Ip(source, destination, protocol, end, first >> 20 & 0xFF, first & 0xFFFFF)


def _udp(
    frame: bytes, ip: _Ip, carrier: IpAddress | None, *, ce: bool
) -> tuple[UdpFlow, bytes] | None:
    header = frame[ip.end : ip.end + 8]
    if len(header) < 8:
        return None
    sport, dport, length = (int.from_bytes(header[i : i + 2], "big") for i in (0, 2, 4))
    # Behind the datagram there may be padding or a checksum of Ethernet. A capture of a burst may
    # have a length of 0, or that of one packet.
    payload = frame[ip.end + 8 : ip.end + _MOST_UDP_BYTES]
    if length >= 8 and len(payload) - (length - 8) < _MOST_PADDING:
        payload = payload[: length - 8]
    flow = UdpFlow(
        ip.source, ip.destination, sport, dport, ip.flow_label, ce, ip.tclass >> 2 in _TRIMMED,
        carrier, ip.fragment,
    )  # fmt: skip
    return flow, payload
