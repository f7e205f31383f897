# SPDX-License-Identifier: Apache-2.0
"""The judge's side of a QP: its packets, made from tables, as frames of a capture and as IP packets
that no UDP socket makes; UDP sockets that send any bytes on several paths and record all that
comes; and a faulty path, with the receiver behind it.

Headers follow the tables of `mrc/dissect/packet.py`, also wrong ones, and share no code with the
engine's encoder. Packets on some EVs of a faulty path arrive late, or are lost. The receiver
answers each packet that arrives with a SACK, as a responder does.
"""

from __future__ import annotations

import heapq
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import chain
from typing import BinaryIO

from msgspec import Struct, field

from mrc.conform.adapter import QpPort
from mrc.dissect.packet import Packet, UdpFlow
from mrc.enums import Reading
from mrc.testbed import capture

IpAddress = IPv4Address | IPv6Address
OPERATION_BYTE = 13  # of an endpoint response
ENDPOINT_QPN = 2
OPCODE = {name: code for code, name in Packet.NAMES["opcode"].items()}


def endpoint_response(number: int, request: Mapping[str, int], readings: Reading) -> bytes:
    """The answer to an endpoint request with this ERTH, without its ICRC."""
    lifted = Reading.C6_B in readings
    fields = {
        "operation": 0 if lifted else request["operation"], "psn": number,
        "tx_timestamp": request["tx_timestamp"], "dest_qpn": ENDPOINT_QPN,
    }  # fmt: skip
    body = bytearray(Packet.encode("ENDPOINT_RESPONSE", fields))
    if lifted:
        body[OPERATION_BYTE] |= request["operation"] << 4
    return bytes(body)


def finished(body: bytes, flow: UdpFlow) -> bytes:
    """The UDP payload: the body and its ICRC."""
    return body + flow.icrc(body)


# ---- Datagrams -----------------------------------------------------------------------------------


class Datagram(Struct):
    """One datagram."""

    at_ns: int
    """Since the epoch."""
    flow: UdpFlow
    payload: bytes
    packet: Packet
    sent: bool
    """By the judge."""
    same_ev: bool = False
    """Whether its PSN came on the same EV before."""
    after_mark: int = 0
    """It is the n-th packet on its EV since a mark of the judge for that EV; 0: there was none."""


# ---- Frames --------------------------------------------------------------------------------------


_UDP, _IPIP, _IPV6_IN_IP = 17, 4, 41
_HOPS = 64
_NO_FRAGMENT = b"\0\0\x40\0"  # identification 0, flag DF
_OUTER_SOURCE = IPv6Address("fd00:f::1")
_SNAP_BYTES = 1 << 18
_CE = 3
_TRIMMED = 0x07 << 2


def frame(flow: UdpFlow, payload: bytes) -> bytes:
    """An Ethernet frame with the IP and UDP headers of this flow, and the carrier around them."""
    tclass = (_TRIMMED if flow.trimmed else 0) | (_CE if flow.ce else 0)
    inner = _ip(flow.source, flow.destination, udp(flow, payload), _UDP, tclass, flow.flow_label)
    if flow.carrier is not None:
        kind = _IPV6_IN_IP if flow.source.version == 6 else _IPIP
        inner = _ip(_OUTER_SOURCE, flow.carrier, inner, kind, tclass, flow.flow_label)
    return bytes(12) + (b"\x86\xdd" if inner[0] >> 4 == 6 else b"\x08\x00") + inner


def udp(flow: UdpFlow, payload: bytes) -> bytes:
    """The UDP header of a flow, and the payload."""
    length = 8 + len(payload)
    ends = flow.source.packed + flow.destination.packed
    pseudo = ends + length.to_bytes(4, "big") + _UDP.to_bytes(4, "big")
    head = b"".join(number.to_bytes(2, "big") for number in (flow.sport, flow.dport, length))
    found = checksum(pseudo + head + payload) or 0xFFFF
    return head + found.to_bytes(2, "big") + payload


def _ip(
    source: IpAddress, destination: IpAddress, payload: bytes, kind: int, tclass: int, label: int,
    hops: int = _HOPS, fragment: bytes = _NO_FRAGMENT,
) -> bytes:  # fmt: skip
    """`fragment`: identification, flags and offset of the IPv4 header."""
    ends = source.packed + destination.packed
    if source.version == 6:
        first = 6 << 28 | tclass << 20 | label
        head = first.to_bytes(4, "big") + len(payload).to_bytes(2, "big")
        return head + bytes([kind, hops]) + ends + payload
    head = bytes([0x45, tclass]) + (20 + len(payload)).to_bytes(2, "big") + fragment
    head += bytes([hops, kind])
    return head + checksum(head + b"\0\0" + ends).to_bytes(2, "big") + ends + payload


def write_capture(file: BinaryIO, datagrams: Iterable[tuple[int, UdpFlow, bytes]]) -> None:
    """Writes a capture: for each datagram its time in ns since the epoch, its flow and payload."""
    capture.write_header(file, _SNAP_BYTES)
    for at_ns, flow, payload in datagrams:
        capture.write_packet(file, at_ns, frame(flow, payload), _SNAP_BYTES)


def checksum(data: bytes) -> int:
    """The ones' complement of the sum of all 16-bit words."""
    return 0xFFFF - (int.from_bytes(data) << 8 * (len(data) % 2)) % 0xFFFF


# ---- IP packets ----------------------------------------------------------------------------------


RAW_FIELDS = ("udp_checksum", "udp_bytes", "fragment", "ttl", "ip_id")
"""Of a step that needs them."""
_FRAGMENT_HEADER = 44
_MORE = 0x2000


def ip_packets(
    flow: UdpFlow, payload: bytes, tclass: int, fields: Mapping[str, int]
) -> Iterator[bytes]:  # fmt: skip
    """The datagram as IP packets. `udp_checksum` and `udp_bytes` are added to the right checksum
    and length. `fragment` 1 is the first half alone, 2 the second one, 3 both.
    """
    segment = udp(flow, payload)
    length = int.from_bytes(segment[4:6], "big") + fields.get("udp_bytes", 0)
    changed = (int.from_bytes(segment[6:8], "big") + fields.get("udp_checksum", 0)) % 0xFFFF
    segment = segment[:4] + length.to_bytes(2, "big") + changed.to_bytes(2, "big") + segment[8:]
    parts = fields.get("fragment", 0)
    if not parts:
        yield _fragment(flow, segment, tclass, fields, 0)
        return
    half = len(segment) // 2 // 8 * 8
    if parts & 1:
        yield _fragment(flow, segment[:half], tclass, fields, _MORE)
    if parts & 2:
        yield _fragment(flow, segment[half:], tclass, fields, half // 8)


def _fragment(
    flow: UdpFlow, data: bytes, tclass: int, fields: Mapping[str, int], place: int
) -> bytes:
    """`place`: offset in units of 8 bytes, and whether more fragments follow, as in IPv4."""
    kind, identity = _UDP, fields.get("ip_id", 0x4D52)
    if place and flow.source.version == 6:
        offset = (place & 0x1FFF) << 3 | place >> 13
        data = bytes([_UDP, 0]) + offset.to_bytes(2, "big") + identity.to_bytes(4, "big") + data
        kind = _FRAGMENT_HEADER
    bits = identity.to_bytes(2, "big") + place.to_bytes(2, "big")
    return _ip(
        flow.source, flow.destination, data, kind, tclass, flow.flow_label,
        fields.get("ttl", _HOPS), bits,
    )  # fmt: skip


# ---- Sockets -------------------------------------------------------------------------------------


_MOST_BYTES = 1 << 16
_BUFFER_BYTES = 8 << 20
_IPV6_FLOWINFO, _IPV6_FLOWINFO_SEND = 11, 33
_TIMESTAMPNS = 35  # SO_TIMESTAMPNS and SCM_TIMESTAMPNS
_CODES_OF_TRIMMED = (0x07, 0x0B)


class SendPath(Struct, frozen=True):
    """One way to the device: a socket, its address and port, a flow label and the target."""

    socket: socket.socket
    source: IpAddress
    sport: int
    target: IpAddress
    flow_label: int = 0
    known: bool = True
    """The device was told that the judge sends from here."""


class JudgePeer:
    """Receives at each of its addresses at one UDP port, and sends on several paths."""

    def __init__(self, addresses: list[str]) -> None:
        self.receivers: list[socket.socket] = []
        self._senders: list[list[socket.socket]] = []
        self._strangers: list[socket.socket] = []
        self.addresses = [ip_address(text) for text in addresses]
        self.udp_port = 0
        self.paths: list[SendPath] = []
        self.seen: list[Datagram] = []
        """all datagrams of the present case"""
        self.fences: set[int] = set()
        """Numbers of endpoint requests that belong to no case."""
        self.stalled_seconds = 0.0
        """The longest time in this case for which a datagram lay unread."""
        self.unread_seconds = 0.0
        """The sum of these times."""
        try:
            for address in self.addresses:
                receiver = _bound(address, self.udp_port)
                self.udp_port = receiver.getsockname()[1]
                self.receivers.append(receiver)
                self._senders.append([_bound(address, 0) for _ in range(4)])
                self._strangers.append(_bound(address, 0))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for each in chain(self.receivers, *self._senders, self._strangers):
            each.close()

    @property
    def ports(self) -> tuple[QpPort, ...]:
        """What a device is told of the addresses and source ports."""
        return tuple(
            QpPort(str(address), tuple(each.getsockname()[1] for each in senders))
            for address, senders in zip(self.addresses, self._senders, strict=True)
        )

    def aim(self, targets: list[str], udp_port: int) -> None:
        """Sends to these addresses from now on: the n-th from this side's n-th address. The last
        paths are from ports that the device was not told of.
        """
        self.target_port = udp_port
        self.paths = []
        self.seen = []
        pairs = list(zip(self.addresses, self._senders, self._strangers, targets, strict=False))
        for address, senders, _, target in pairs:
            for label, sender in enumerate(senders, 1):
                self.paths.append(_path(sender, address, target, label, known=True))
        for address, _, stranger, target in pairs:
            self.paths.append(_path(stranger, address, target, 1, known=False))
        # What is left of an earlier QP is thrown away.
        while select.select(self.receivers, [], [], 0)[0]:
            self._take(0)
        self.seen, self.stalled_seconds, self.unread_seconds = [], 0.0, 0.0

    def flow(self, path: SendPath) -> UdpFlow:
        """The headers of what is sent on a path."""
        return UdpFlow(path.source, path.target, path.sport, self.target_port, path.flow_label)

    def send(self, path: SendPath, payload: bytes, tclass: int = 0) -> None:
        """Sends one datagram with this traffic class."""
        if path.source.version == 4:
            ancillary = (socket.IPPROTO_IP, socket.IP_TOS, struct.pack("=i", tclass))
            address: tuple[str, int] | tuple[str, int, int, int]
            address = (str(path.target), self.target_port)
        else:
            ancillary = (socket.IPPROTO_IPV6, socket.IPV6_TCLASS, struct.pack("=i", tclass))
            address = (str(path.target), self.target_port, path.flow_label, 0)
        at_ns = time.time_ns()  # before the device can answer
        path.socket.sendmsg([payload], [ancillary], 0, address)
        self._record(self.flow(path), payload, tclass, at_ns, sent=True)

    def send_raw(
        self, path: SendPath, payload: bytes, tclass: int, fields: Mapping[str, int]
    ) -> None:  # fmt: skip
        """Likewise, with IP and UDP headers that a UDP socket does not make. Raises PermissionError
        without CAP_NET_RAW.
        """
        flow, at_ns = self.flow(path), time.time_ns()
        family = socket.AF_INET if path.source.version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW) as sender:
            for packet in ip_packets(flow, payload, tclass, fields):
                sender.sendto(packet, (str(path.target), 0))
        self._record(flow, payload, tclass, at_ns, sent=True)

    def answer(self, seen: Datagram, readings: Reading) -> None:
        """Answers an endpoint request, as each peer must."""
        erth = seen.packet.headers.get("ERTH")
        if erth is None or erth["operation"] not in Packet.NAMES["operation"]:
            return
        path = next((each for each in self.paths if each.source == seen.flow.destination),
                    self.paths[0])  # fmt: skip
        body = endpoint_response(seen.packet.headers["BTH"]["psn"], erth, readings)
        self.send(path, finished(body, self.flow(path)))

    def receive(self, until: float) -> Datagram | None:
        """The next datagram that comes before this time of `time.monotonic`; None: none."""
        return self._take(max(0.0, until - time.monotonic()))

    def _take(self, seconds: float) -> Datagram | None:
        ready, _, _ = select.select(self.receivers, [], [], seconds)
        if not ready:
            return None
        receiver = ready[0]
        payload, ancillary, _, source = receiver.recvmsg(_MOST_BYTES, 256)
        at_ns, tclass, label = _traits(ancillary)
        unread = time.time() - at_ns / 1e9
        self.stalled_seconds = max(self.stalled_seconds, unread)
        self.unread_seconds += unread
        index = self.receivers.index(receiver)
        flow = UdpFlow(
            ip_address(source[0]), self.addresses[index], source[1], self.udp_port, label
        )  # fmt: skip
        return self._record(flow, payload, tclass, at_ns, sent=False)

    def _record(
        self, flow: UdpFlow, payload: bytes, tclass: int, at_ns: int, *, sent: bool
    ) -> Datagram:  # fmt: skip
        marked = UdpFlow(
            flow.source, flow.destination, flow.sport, flow.dport, flow.flow_label,
            tclass & 3 == _CE, tclass >> 2 in _CODES_OF_TRIMMED,
        )  # fmt: skip
        seen = Datagram(at_ns, marked, payload, Packet.decode(payload, marked), sent=sent)
        self.seen.append(seen)
        return seen


def _path(
    sender: socket.socket, address: IpAddress, target: str, label: int, *, known: bool
) -> SendPath:
    labelled = label if address.version == 6 else 0
    return SendPath(
        sender, address, sender.getsockname()[1], ip_address(target), labelled, known
    )  # fmt: skip


def _bound(address: IpAddress, port: int) -> socket.socket:
    """A UDP socket that sees time of arrival, traffic class and flow label of what it receives."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    made = socket.socket(family, socket.SOCK_DGRAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        made.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)
        if address.version == 4:
            made.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        else:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
            made.setsockopt(socket.IPPROTO_IPV6, _IPV6_FLOWINFO, 1)
            made.setsockopt(socket.IPPROTO_IPV6, _IPV6_FLOWINFO_SEND, 1)
        made.bind((str(address), port))
    except BaseException:
        made.close()
        raise
    return made


def _traits(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, int, int]:
    """Time of arrival in ns since the epoch, traffic class and flow label."""
    at_ns, tclass, label = time.time_ns(), 0, 0
    for level, kind, data in ancillary:
        if (level, kind) in (
            (socket.IPPROTO_IP, socket.IP_TOS), (socket.IPPROTO_IPV6, socket.IPV6_TCLASS),
        ):  # fmt: skip
            tclass = data[0]
        elif (level, kind) == (socket.IPPROTO_IPV6, _IPV6_FLOWINFO):
            label = int.from_bytes(data[:4], "big") & 0xFFFFF
        elif (level, kind) == (socket.SOL_SOCKET, _TIMESTAMPNS):
            seconds, rest = struct.unpack("@qq", data)
            at_ns = seconds * 10**9 + rest
    return at_ns, tclass, label


# ---- A faulty path -------------------------------------------------------------------------------


_BITS = 64  # of a bitmap


class FaultyPath(Struct):
    """What the network does with the packets of the device, and what the receiver has."""

    limps: Callable[[Datagram], bool]
    """Whether a packet takes the part that limps."""
    late_ns: int = 0
    loses: int = 0
    """There every n-th packet is lost; 0: none."""
    received: set[int] = field(default_factory=set)
    """PSNs."""
    _sent: int = 0
    _passed: int = 0
    _on_the_way: list[tuple[int, int, Datagram]] = field(default_factory=list)

    def send(self, seen: Datagram) -> None:
        """A packet of the device enters the network."""
        self._sent += 1
        limps = self.limps(seen)
        self._passed += limps
        if limps and self.loses and self._passed % self.loses == 0:
            return
        at_ns = seen.at_ns + (self.late_ns if limps else 0)
        heapq.heappush(self._on_the_way, (at_ns, self._sent, seen))

    @property
    def next_ns(self) -> int | None:
        """When the next packet arrives; None: none is on its way."""
        return self._on_the_way[0][0] if self._on_the_way else None

    def arrivals(self, now_ns: int) -> Iterator[tuple[Datagram, int]]:
        """The packets that have arrived by now, in order, and their delays in nanoseconds."""
        while self._on_the_way and self._on_the_way[0][0] <= now_ns:
            at_ns, _, seen = heapq.heappop(self._on_the_way)
            yield seen, at_ns - seen.at_ns

    def report(self, psn: int | None) -> dict[str, int | str]:
        """What a SACK says: the cumulative PSN, the offset of its bitmap, and the PSNs in it, among
        them the one that arrived.
        """
        cum = -1
        while cum + 1 in self.received:
            cum += 1
        base = cum + 1 if psn is None else max(cum + 1, psn - _BITS + 1)
        has = [each for each in range(base, base + _BITS) if each in self.received]
        told: dict[str, int | str] = {"cum_psn": cum, "sack_offset": base - cum}
        return told | ({"has": ",".join(map(str, has))} if has else {})
