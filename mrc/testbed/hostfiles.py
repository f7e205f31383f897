# SPDX-License-Identifier: Apache-2.0
"""The files of a test bed's host: its configuration and /etc/hosts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from mrc.fabric.srv6 import format_usid
from mrc.fabric.topology import Origin, Path
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
            for plane, address in zip(
                shape.planes_of(host), shape.plane_addresses(host), strict=True
            )
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
            f"plane = {plane}",
        ]
    for peer in shape.host_numbers():
        present = shape.present(host, peer) if peer != host else ()
        if present:
            by_planes = bool({host, peer} & _without_management(shape))
            head, paths = _peer(shape, peer, shape.origin(host, peer), by_planes)
            lines += head
            for number in present:
                lines += paths[number]
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=1024)
def _peer(
    shape: Shape, peer: int, origin: Origin, by_planes: bool
) -> tuple[list[str], list[list[str]]]:
    """The lines of a peer, and of each path to it. `by_planes`: one of the two has no management
    network.
    """
    addresses = shape.addresses
    oob = addresses.host(peer) if by_planes else addresses.oob(peer)
    head = [
        "",
        f"[peers.h{peer}]",
        f'oob = "{oob}"',
        f'sources = ["{addresses.host(peer)}"]',
    ]
    return head, [_path(peer, path) for path in shape.paths_to(peer, origin)]


def _without_management(shape: Shape) -> set[int]:
    """Real hosts without an interface there."""
    real = shape.outside.hosts
    return {int(each.host.removeprefix("h")) for each in real if each.management is None}


def _path(peer: int, path: Path) -> list[str]:
    segments = ", ".join(f'"{segment}"' for segment in path.segments)
    usids = ", ".join(f'"{format_usid(usid)}"' for usid in path.usids)
    return [
        "",
        f"[[peers.h{peer}.paths]]",
        f"plane = {path.plane}",
        f'name = "{path.name}"',
        f'dst = "{path.dst}"',
        f"segments = [{segments}]",
        f"usids = [{usids}]",
    ]
