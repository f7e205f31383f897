# SPDX-License-Identifier: Apache-2.0
"""The paths and EVs to a peer. Pure.

There are two path sources. `srv6` takes the paths of the host configuration, one EV each.
`interfaces` pairs local with remote addresses and gives each pair several EVs. On IPv6 these EVs
differ in the flow label. IPv4 has no flow label, so each EV requires its own source port and
therefore its own transmit socket.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import product

from msgspec import Struct

from mrc.fabric.addresses import IpAddress
from mrc.fabric.hostconfig import HostPath
from mrc.fabric.ports import LocalPort, RemotePort
from mrc.limits import MAX_EVS, MAX_PEER_SOURCES

_FLOW_LABELS = range(1, 1 << 16)  # 0 makes Linux choose a label


class EvAttr(Struct, frozen=True):
    """One entropy value, with the addresses and header fields that select its path."""

    port: int
    tx_index: int
    source: IpAddress
    destination: IpAddress
    sport: int
    flow_label: int
    dport: int

    @property
    def ev(self) -> int:
        """The 32 bits in a packet: source port in the upper half, flow label in the lower."""
        return self.sport << 16 | self.flow_label


class PeerSource(Struct, frozen=True):
    """A source address and source UDP port of the peer's packets."""

    address: IpAddress
    sport: int


class PathEv(Struct, frozen=True):
    """An EV and the path that it names."""

    attr: EvAttr
    name: str
    segments: tuple[str, ...] = ()
    usids: tuple[str, ...] = ()


# ---- Pairs of ports -------------------------------------------------------------------------

Pair = tuple[LocalPort, RemotePort]

# Rounds of pairing: IP versions, whether both ports must share a subnet, and how many of the two
# interfaces must still be without a pair.
_ROUNDS = (
    ((6,), True, 2),
    ((4,), True, 2),
    ((6,), False, 2),
    ((4,), False, 2),
    ((4, 6), True, 1),
)


def pair(local: Sequence[LocalPort], remote: Sequence[RemotePort]) -> list[Pair]:
    """Pairs local with remote ports: first within common subnets, then by order.

    Each interface is used in one IP version. A port left over on either side is paired with a port
    of its subnet that already has a pair, so all links are used even if their numbers differ.
    """
    own = {port.address.ip for port in local if not port.loopback}
    remote = [port for port in remote if port.address.ip not in own]
    pairs: list[Pair] = []
    used_local: set[str] = set()
    used_remote: set[str] = set()
    for versions, in_subnet, least_free in _ROUNDS:
        for port, other in product(local, remote):
            version = port.address.version
            fit = _same_subnet(port, other) if in_subnet else version == other.address.version
            free = (port.nic not in used_local) + (other.nic not in used_remote)
            if version in versions and fit and free >= least_free:
                pairs.append((port, other))
                used_local.add(port.nic)
                used_remote.add(other.nic)
    # Link-local addresses of all links are in one subnet: only probes show which link leads where.
    pairs += [
        (port, other)
        for port, other in product(local, remote)
        if _is_link_local(port) and _is_link_local(other) and (port, other) not in pairs
    ]
    return sorted(pairs, key=lambda made: made[0].plane)


def loopback_pairs(
    local: Sequence[LocalPort], remote: Sequence[RemotePort], version: int
) -> list[Pair]:
    """Pairs the loopback ports of two Contexts on one host by order, in one IP version."""
    return list(
        zip(
            [port for port in local if port.address.version == version],
            [port for port in remote if port.address.version == version],
            strict=False,
        )
    )


def _is_link_local(port: LocalPort | RemotePort) -> bool:
    return port.address.version == 6 and port.address.ip.is_link_local


def _same_subnet(local: LocalPort, remote: RemotePort) -> bool:
    a, b = local.address, remote.address
    return a.version == b.version and b.ip in a.network and a.ip in b.network


# ---- EVs ------------------------------------------------------------------------------------


class SourcePorts(Struct, frozen=True):
    """The UDP source ports of this Context: `of[plane]` has one for each transmit socket."""

    of: dict[int, tuple[int, ...]]


def srv6_evs(
    paths: Sequence[HostPath],
    ports: Sequence[LocalPort],
    sports: SourcePorts,
    dport: int,
    rng: random.Random,
) -> list[PathEv]:
    """One EV for each path of the host configuration whose port exists."""
    by_plane = {port.plane: port for port in ports}
    paths = [path for path in paths if path.plane in by_plane]
    labels = rng.sample(_FLOW_LABELS, len(paths))
    evs = [
        PathEv(
            EvAttr(
                port=path.plane,
                tx_index=0,
                source=by_plane[path.plane].address.ip,
                destination=path.destination,
                sport=sports.of[path.plane][0],
                flow_label=label,
                dport=dport,
            ),
            path.name,
            path.segments,
            path.usids,
        )
        for path, label in zip(paths, labels, strict=True)
    ]
    return distinct(evs)


def pair_evs(
    pairs: Sequence[Pair], sports: SourcePorts, dport: int, per_pair: int, rng: random.Random
) -> list[PathEv]:
    """Several EVs for each pair of ports."""
    labels = iter(rng.sample(_FLOW_LABELS, len(pairs) * per_pair))
    evs: list[PathEv] = []
    for i, (local, remote) in enumerate(pairs):
        rank = sum(1 for port, _ in pairs[:i] if port.plane == local.plane)
        sharing = sum(1 for port, _ in pairs if port.plane == local.plane)
        # Pairs of one IPv4 port divide its sockets, because only the source port names an EV.
        pool = range(len(sports.of[local.plane]))[rank::sharing]
        for k in range(per_pair if local.address.version == 6 else min(per_pair, len(pool))):
            tx_index = pool[k] if local.address.version == 4 else 0
            attr = EvAttr(
                port=local.plane,
                tx_index=tx_index,
                source=local.address.ip,
                destination=remote.address.ip,
                sport=sports.of[local.plane][tx_index],
                flow_label=0 if local.address.version == 4 else next(labels),
                dport=dport,
            )
            evs.append(PathEv(attr, f"{local.nic}>{remote.address.ip}#{k + 1}"))
    return distinct(evs)


def distinct(evs: Iterable[PathEv]) -> list[PathEv]:
    """Removes duplicates and surplus EVs.

    A duplicate has the same 32 bits as an earlier EV: two ports can have the same source port. Each
    plane keeps at most its equal share of the EV table.
    """
    seen: dict[int, PathEv] = {}
    for ev in evs:
        seen.setdefault(ev.attr.ev, ev)
    planes: dict[int, list[PathEv]] = {}
    for ev in seen.values():
        planes.setdefault(ev.attr.port, []).append(ev)
    share = MAX_EVS // max(1, len(planes))
    return [ev for plane in sorted(planes) for ev in planes[plane][:share]]


def peer_sources(addresses: Iterable[tuple[IpAddress, Iterable[int]]]) -> list[PeerSource]:
    """The distinct sources of a peer's packets, from addresses with their source ports."""
    sources = {(address, sport): None for address, sports in addresses for sport in sports}
    return [PeerSource(*source) for source in sources][:MAX_PEER_SOURCES]
