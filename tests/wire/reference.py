# SPDX-License-Identifier: Apache-2.0
"""The ICRC once more, written from RoCEv2's rules and with nothing of ours."""

from __future__ import annotations

import struct
import zlib
from ipaddress import ip_address


def icrc(
    src: str, dst: str, sport: int, dport: int, body: bytes, *, ident: int, fragment: int
) -> bytes:
    """ICRC of the UDP payload `body`, on the wire's order of bytes.

    `ident` and `fragment` are the IPv4 identification and the 16 bits of flags and offset behind
    it: RoCEv2 covers them, this project covers ones in their place.
    """
    udp_bytes = 8 + len(body) + 4
    addresses = ip_address(src).packed + ip_address(dst).packed
    if len(addresses) == 8:
        fixed = (0x45, 0xFF, 20 + udp_bytes, ident, fragment, 0xFF, 17, 0xFFFF)
        ip = struct.pack("!BBHHHBBH", *fixed) + addresses
    else:
        ip = struct.pack("!IHBB", 0x6FFFFFFF, udp_bytes, 17, 0xFF) + addresses
    udp = struct.pack("!HHHH", sport, dport, udp_bytes, 0xFFFF)
    masked = b"\xff" * 8 + ip + udp + body[:4] + b"\xff" + body[5:]
    return struct.pack("<I", zlib.crc32(masked))
