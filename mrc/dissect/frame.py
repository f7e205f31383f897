# SPDX-License-Identifier: Apache-2.0
"""Finds the UDP payload in a captured frame: Ethernet, VLAN, IP, SRv6, IP in IP and VXLAN. Pure.

Any bytes give a payload or None, and no read is beyond their end.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from mrc.dissect.packet import Flow, IpAddress

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


def udp_of(frame: bytes, link: int) -> tuple[Flow, bytes] | None:
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
) -> tuple[Flow, bytes] | None:
    header = frame[ip.end : ip.end + 8]
    if len(header) < 8:
        return None
    sport, dport, length = (int.from_bytes(header[i : i + 2], "big") for i in (0, 2, 4))
    # Behind the datagram there may be padding or a checksum of Ethernet. A capture of a burst may
    # have a length of 0, or that of one packet.
    payload = frame[ip.end + 8 : ip.end + _MOST_UDP_BYTES]
    if length >= 8 and len(payload) - (length - 8) < _MOST_PADDING:
        payload = payload[: length - 8]
    flow = Flow(
        ip.source, ip.destination, sport, dport, ip.flow_label, ce, ip.tclass >> 2 in _TRIMMED,
        carrier, ip.fragment,
    )  # fmt: skip
    return flow, payload
