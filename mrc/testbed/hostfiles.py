# SPDX-License-Identifier: Apache-2.0
"""The files of a test bed's host: its configuration and /etc/hosts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from mrc.fabric.srv6 import format_usid
from mrc.testbed.shape import Shape


def hosts_file(shape: Shape) -> str:
    """/etc/hosts inside the hosts: names on all planes, in each plane and on the management.

    The planes are IPv6. Programs that know only IPv4 reach `h1` over the management, as in a
    cluster: perftest, for example, which only exchanges its parameters there.
    """
    addresses, lines = shape.addresses, ["127.0.0.1 localhost", "::1 localhost"]
    for host in shape.host_numbers():
        lines.append(f"{addresses.host(host)} h{host} h{host}.any")
        lines += [
            f"{address} h{host}.p{plane}"
            for plane, address in enumerate(shape.plane_addresses(host), 1)
        ]
        lines.append(f"{addresses.oob(host)} h{host}.mgmt")
        lines.append(f"{addresses.oob_ipv4(host).ip} h{host}.mgmt h{host}")
    return "\n".join(lines) + "\n"


def config(shape: Shape, host: int, mtus: Mapping[int, int]) -> str:
    """The host's configuration file: its ports, its peers and the paths to them. `mtus`: plane ->
    MTU of the port there.
    """
    lines = ["schema = 1", f'host = "h{host}"', 'source = "srv6"', 'security = "none"']
    for plane, mtu in mtus.items():
        lines += [
            "",
            "[[ports]]",
            f'ifname = "p{plane}"',
            f'address = "{shape.addresses.host(host)}"',
            f"mtu = {mtu}",
        ]
    for peer in shape.host_numbers():
        if peer != host:
            lines += _peer(shape, peer, shape.are_near(host, peer))
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=1024)
def _peer(shape: Shape, peer: int, near: bool) -> tuple[str, ...]:
    lines = [
        "",
        f"[peers.h{peer}]",
        f'oob = "{shape.addresses.oob(peer)}"',
        f'sources = ["{shape.addresses.host(peer)}"]',
    ]
    for path in shape.paths_to(peer, near=near):
        segments = ", ".join(f'"{segment}"' for segment in path.segments)
        usids = ", ".join(f'"{format_usid(usid)}"' for usid in path.usids)
        lines += [
            "",
            f"[[peers.h{peer}.paths]]",
            f"plane = {path.plane}",
            f'name = "{path.name}"',
            f'dst = "{path.dst}"',
            f"segments = [{segments}]",
            f"usids = [{usids}]",
        ]
    return tuple(lines)
