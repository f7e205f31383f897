# SPDX-License-Identifier: Apache-2.0
"""What a QP says of each pair of ports: whether it is a plane, and why not."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from ipaddress import ip_interface
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import pytest
from endpoints import joined, loopback_config, two_planes

from mrc import ContextConfig
from mrc.connect.pairs import (
    PairProof,
    Pairs,
    PairTerms,
    _Reach,
    beside_planes,
    on_plane,
    sharing_hosts,
    yielding,
)
from mrc.connect.proof import Proof
from mrc.engine.paths import LocalPort, PortPair, RemotePort
from mrc.enums import EvState, PairState
from mrc.errors import PeerGoneError
from mrc.events import PairInfo

GOOD, BAD, DENIED = EvState.GOOD, EvState.ASSUMED_BAD, EvState.DENIED
MTU = 1408


@pytest.mark.parametrize(
    ("evs", "suspended", "weight", "state", "why"),
    [
        ([GOOD, EvState.SKIP], False, 100, PairState.USED, ""),
        ([GOOD, BAD, None], False, 100, PairState.USED, "2 of 3 paths do not carry data"),
        ([GOOD], False, 0, PairState.BACKUP, "it carries data while no other plane does"),
        ([GOOD], True, 100, PairState.SILENT, "no answer over UDP now"),
        ([BAD, DENIED], False, 100, PairState.SILENT, "no answer over UDP now"),
        ([DENIED, DENIED], False, 100, PairState.DENIED, "all its paths are denied"),
    ],
)
def test_on_plane(
    evs: Sequence[EvState | None], suspended: bool, weight: int, state: PairState, why: str
) -> None:
    assert on_plane(evs, suspended=suspended, weight=weight) == (state, why)


@pytest.mark.parametrize(
    ("found", "state", "why"),
    [
        (PairProof(8, 8, MTU), PairState.WAITS, "not needed: both interfaces have another pair"),
        (PairProof(8, 7, 1188), PairState.SMALL, "carries only 1188 bytes in a packet, not 1408"),
        (PairProof(8), PairState.SILENT, "no answer over UDP"),
        (PairProof(2, error=errno.ENETUNREACH), PairState.UNREACHABLE,
         "cannot be sent: network is unreachable"),
    ],
)  # fmt: skip
def test_beside_planes(found: PairProof, state: PairState, why: str) -> None:
    assert beside_planes(found, MTU) == (state, why)


def test_proof__of_each_plane() -> None:
    proof = Proof({1: MTU}, dead=(1,), unproven=(2, 3), errors=(0, 0, 0, errno.ENETUNREACH))
    assert PairProof.of([1, 1, 2, 3], proof) == {
        1: PairProof(2, 1, MTU),
        2: PairProof(1),
        3: PairProof(1, error=errno.ENETUNREACH),
    }
    assert PairProof.of([1, 1, 2]) == {1: PairProof(2), 2: PairProof(1)}


# ---- All pairs ------------------------------------------------------------------------------


def here(plane: int, nic: str, address: str, mtu: int = MTU, weight: int = 100) -> LocalPort:
    return LocalPort(plane, nic, ip_interface(address), mtu, ifname=nic, weight=weight)


def there(nic: str, address: str) -> RemotePort:
    return RemotePort(nic, ip_interface(address), (50000,), MTU)


class Fixed:
    """Pairs of a QP, and what its planes are just now."""

    def __init__(
        self,
        local: list[LocalPort],
        remote: list[RemotePort],
        planes: dict[int, tuple[int, int]],
        reach: _Reach,
        proofs: dict[int, PairProof] | None = None,
        *,
        fixed: bool = False,
    ) -> None:
        made = {plane: PortPair(local[x], remote[y]) for plane, (x, y) in planes.items()}
        others = [PortPair(x, y) for x in local for y in remote]
        self.pairs = Pairs(
            Mock(), Mock(), PairTerms(
                host="h1", links=Mock(most=16), dispatcher=Mock(),
                queue=SimpleNamespace(seal=0, qpn=1),  # type: ignore[arg-type]
                controller=SimpleNamespace(evs=[]),  # type: ignore[arg-type]
                rng=Mock(), first=True, udp_port=4791, config=ContextConfig(), path_mtu=MTU,
                local=local, remote=remote, planes=made,
                others=[each for each in others if each not in made.values()],
                claims=Mock(), check=Mock(), warn=Mock(), silent=set(),
                proofs=proofs or {}, fixed=fixed,
            )
        )  # fmt: skip
        self.pairs._runs = True
        self.pairs._look = AsyncMock(return_value=reach)  # type: ignore[method-assign]

    async def states(self) -> dict[tuple[str, str], PairInfo]:
        return {(each.address, each.peer_address): each for each in await self.pairs.infos()}


def test_yielding__the_others_reach_all_interfaces() -> None:
    """The first planes stay, but for one whose two interfaces only others need. Later ones stay
    instead of first ones that carry much less.
    """
    a, b, c = (here(n, name, f"10.0.{n}.1/24") for n, name in enumerate("abc", 1))
    x, y, z = (there(name, f"10.0.{n}.2/24") for n, name in enumerate("xyz", 1))
    square = [(a, x), (b, y), (a, y), (b, x)]
    for pairs, carried, names in (
        ([(a, x)], [], []),
        ([(a, x), (b, y)], [], []),
        ([(a, x), (b, x), (c, x)], [], []),
        (square, [], [3, 4]),
        (square, [10, 10, 15, 15], [3, 4]),
        (square, [10, 500, 700, 800], [1, 2]),
        (square, [10, 500, 700, 8], [3, 4]),
        ([(a, x), (b, x), (a, y)], [], [1]),
        ([(a, x), (b, y), (a, z), (a, y)], [], [4]),
        ([(a, x), (a, x)], [], [2]),
        ([(a, x), (a, x)], [1, 4], [1]),
    ):
        planes = {plane: PortPair(*each) for plane, each in enumerate(pairs, 1)}
        assert yielding(planes, dict(enumerate(carried, 1))) == set(names), (pairs, carried)


def test_count__a_few_packets_show_nothing() -> None:
    """Nor do those of a plane whose number another had."""
    one, x = here(1, "a", "10.0.1.1/24"), there("x", "10.0.1.2/24")
    pairs = Fixed([one], [x], {1: (0, 0)}, _Reach(set(), False, set())).pairs
    for sent, carried in (
        ({1: 200, 2: 40}, {}),
        ({1: 200, 2: 400}, {1: 200, 2: 400}),
        ({1: 300, 2: 420}, {1: 200, 2: 400}),
        ({1: 600, 2: 7}, {1: 400, 2: 0}),
    ):
        pairs._count(sent)
        assert pairs._carried == carried, sent


def test_lacks__all_pairs_while_much_data_is_sent() -> None:
    a, b = here(1, "a", "10.0.1.1/24"), here(2, "b", "10.0.2.1/24")
    x, y = there("x", "10.0.1.2/24"), there("y", "10.0.2.2/24")
    for bulk in (False, True):
        reach = _Reach({("a", "x"), ("b", "y")}, bulk=bulk, new=set())
        assert reach.lacks(PortPair(a, y)) is bulk
        assert not reach.lacks(PortPair(a, x)), "they have a plane"
    reach = _Reach({("a", "x")}, bulk=False, new=set())
    assert reach.lacks(PortPair(b, x)) and reach.lacks(PortPair(a, y)), "b and y have none"


async def test_infos__of_all_combinations() -> None:
    local = [
        here(1, "a", "10.0.1.1/24"), here(2, "b", "10.0.2.1/24"), here(3, "c", "fd00::1/64"),
        here(4, "d", "172.17.0.1/16"),
    ]  # fmt: skip
    remote = [there("x", "10.0.1.2/24"), there("d", "172.17.0.1/16"), there("y", "fe80::1/64")]
    reach = _Reach({("a", "x")}, bulk=False, new=set(), evs={1: [GOOD, GOOD]})
    found = await Fixed(local, remote, {1: (0, 0)}, reach).states()
    used = found["10.0.1.1", "10.0.1.2"]
    assert (used.plane, used.state, used.paths, used.answering_paths) == (1, PairState.USED, 2, 2)
    assert (used.nic, used.peer_nic, used.weight_percent, used.why) == ("a", "x", 100, "")
    assert found["10.0.2.1", "10.0.1.2"].state is PairState.TRYING, "b has no other pair"
    reasons = {key: each.why for key, each in found.items() if each.state is PairState.UNFIT}
    assert reasons["fd00::1", "10.0.1.2"] == "no common IP version"
    assert reasons["fd00::1", "fe80::1"] == "only one of the addresses is link-local"
    assert reasons["10.0.1.1", "172.17.0.1"] == "both hosts have this address"
    assert len(found) == 12 and len(reasons) == 10


async def test_infos__of_pairs_that_are_no_planes() -> None:
    local = [here(1, "a", "10.0.1.1/24"), here(2, "b", "10.0.2.1/24", mtu=100)]
    remote = [there("x", "10.0.1.2/24"), there("y", "10.0.2.2/24")]
    reach = _Reach(
        {("a", "x"), ("b", "y")}, bulk=False, new=set(), evs={1: [GOOD], 3: [None, None]}
    )
    fixed = Fixed(local, remote, {1: (0, 0), 2: (1, 1), 3: (0, 1)}, reach, proofs={3: PairProof(2)})
    found = await fixed.states()
    assert found["10.0.2.1", "10.0.2.2"].state is PairState.SMALL, "without any EV"
    assert found["10.0.1.1", "10.0.2.2"].state is PairState.SILENT
    assert found["10.0.2.1", "10.0.1.2"].state is PairState.WAITS, "both have another"
    fixed.pairs._terms.proofs.clear()
    fixed.pairs._found.clear()
    fixed.pairs._others.clear()
    found = await fixed.states()
    assert found["10.0.1.1", "10.0.2.2"].state is PairState.WAITS
    assert found["10.0.2.1", "10.0.1.2"].why == "only 16 pairs are tried"


async def test_infos__before_the_qp_runs_only_probes_count() -> None:
    """The exchange gives up: no EV has been called bad yet."""
    local, remote = [here(1, "a", "10.0.1.1/24")], [there("x", "10.0.1.2/24")]
    reach = _Reach(set(), bulk=False, new=set(), evs={1: [GOOD, GOOD]})
    fixed = Fixed(local, remote, {1: (0, 0)}, reach, proofs=PairProof.of([1, 1]))
    fixed.pairs._runs = False
    (info,) = await fixed.pairs.infos()
    assert (info.state, info.paths, info.answering_paths) == (PairState.SILENT, 2, 0)


async def test_infos__a_port_that_is_gone_is_still_shown() -> None:
    local, remote = [here(1, "a", "10.0.1.1/24")], [there("x", "10.0.1.2/24")]
    fixed = Fixed(local, remote, {1: (0, 0)}, _Reach(set(), bulk=False, new=set(), evs={1: [BAD]}))
    fixed.pairs._local.clear()
    (info,) = await fixed.pairs.infos()
    assert (info.nic, info.state) == ("a", PairState.SILENT)


async def test_infos__a_refused_pair_has_its_reason() -> None:
    local, remote = (
        [here(1, "a", "10.0.1.1/24")],
        [there("x", "10.0.1.2/24"), there("y", "10.0.2.2/24")],
    )
    reach = _Reach({("a", "x")}, bulk=False, new=set(), evs={1: [GOOD]})
    fixed = Fixed(local, remote, {1: (0, 0)}, reach)
    pairs, terms = fixed.pairs, fixed.pairs._terms
    for most, received, why in (
        (1, 1 << 20, "a QP has at most 1 plane"),  # y has no other pair
        (16, 0, "its address has had all probes that a stranger gets"),
    ):
        terms.links.most, pairs._channel.received_bytes = most, received  # type: ignore[misc]
        await pairs._begin(reach, list(pairs._others))
        refused = (await fixed.states())["10.0.1.1", "10.0.2.2"]
        assert (refused.state, refused.why) == (PairState.LIMIT, why)


async def test_begin__pairs_for_much_data_leave_numbers_to_ports_that_come() -> None:
    local = [here(1, "a", "10.0.1.1/24"), here(2, "b", "10.0.2.1/24")]
    remote = [there("x", "10.0.1.2/24"), there("y", "10.0.2.2/24")]
    reach = _Reach({("a", "x"), ("b", "y")}, bulk=True, new=set(), evs={1: [GOOD], 2: [GOOD]})
    fixed = Fixed(local, remote, {1: (0, 0), 2: (1, 1)}, reach)
    pairs = fixed.pairs
    pairs._terms.links.most, pairs._channel.received_bytes = 4, 1 << 20  # type: ignore[misc]
    await pairs._begin(reach, list(pairs._others))
    state = (await fixed.states())["10.0.1.1", "10.0.2.2"]
    assert (state.state, state.why) == (PairState.LIMIT, "a QP has at most 2 planes")


async def test_infos__weights_and_arp() -> None:
    local = [here(1, "a", "10.0.1.1/24", weight=0), here(2, "b", "10.0.1.2/24", weight=50)]
    remote = [there("x", "10.0.1.3/24")]
    reach = _Reach(set(), bulk=False, new=set(), evs={1: [GOOD], 2: [BAD]})
    found = await Fixed(local, remote, {1: (0, 0), 2: (1, 0)}, reach).states()
    backup, silent = found["10.0.1.1", "10.0.1.3"], found["10.0.1.2", "10.0.1.3"]
    assert (backup.state, backup.weight_percent) == (PairState.BACKUP, 0)
    assert silent.weight_percent == 50
    assert silent.why.endswith("perhaps because of ARP: run mrc doctor on this host")
    pair = PortPair(local[0], remote[0])
    assert sharing_hosts({4: pair}, local, [*remote, there("y", "10.0.1.4/24")], "h1") == {
        4: "this host and h1"
    }


async def test_infos__of_configured_paths() -> None:
    """Under SRv6 both interfaces of a host have one address."""
    local = [here(1, "p1", "fd00::1/128"), here(2, "p2", "fd00::1/128")]
    remote = [there("p1", "fd00::2/128"), there("p2", "fd00::2/128")]
    reach = _Reach(set(), bulk=False, new=set(), evs={1: [GOOD], 2: [BAD]})
    fixed = Fixed(local, remote, {1: (0, 0), 2: (1, 1)}, reach, fixed=True)
    shown = [(each.plane, each.state, each.why) for each in await fixed.pairs.infos()]
    apart = (None, PairState.UNFIT, "the host configuration does not join them")
    silent = (2, PairState.SILENT, "no answer over UDP now")
    assert shown == [(1, PairState.USED, ""), apart, apart, silent]


async def test_pairs__of_a_host_with_itself() -> None:
    config = loopback_config(**two_planes())
    async with joined(config, config) as pair:
        infos = await pair.near.pairs()
        planes = {each.plane for each in infos if each.state is PairState.USED}
        assert planes == set(pair.near.planes)
        rest = {(each.state, each.why) for each in infos if each.plane is None}
        assert rest == {(PairState.UNFIT, "on one host ports are joined in order")}


async def test_tell__again_when_the_connection_is_open_again() -> None:
    """A port that came while the connection was lost."""
    one, two = here(1, "eth0", "10.0.1.1/24"), here(2, "eth1", "10.0.2.1/24")
    case = Fixed([one], [there("x", "10.0.1.2/24")], {1: (0, 0)}, _Reach(set(), False, set()))
    pairs = case.pairs
    pairs._terms.links.sports = {2: (50000,)}  # type: ignore[misc]
    pairs._ports = Mock(return_value=[one, two])  # type: ignore[method-assign]
    ends = one.address.ip, ip_interface("10.0.1.2/24").ip
    gone = AsyncMock(side_effect=PeerGoneError("gone"))
    pairs._channel = Mock(ends=ends, send=gone, received_bytes=0)
    assert await pairs._tell()
    pairs._lose.assert_called_once_with()  # type: ignore[attr-defined]
    again = Mock(ends=ends, send=AsyncMock())
    pairs.take_channel(again)
    assert await pairs._tell()
    assert [call.kwargs["port"]["number"] for call in again.send.await_args_list] == [2]
    assert not await pairs._tell()


async def test_look__the_interface_of_the_connection_falls_silent() -> None:
    """It is opened again once, not while no plane is left, nor where no plane ever reached it."""
    one, two = here(1, "a", "10.0.1.1/24"), here(2, "b", "10.0.2.1/24")
    x, y = there("x", "10.0.1.2/24"), there("y", "10.0.2.2/24")
    both, second = {("a", "x"), ("b", "y")}, {("b", "y")}
    for looks, opened in (
        ([both, second, second], 1),
        ([both, set(), both], 0),
        ([second, second], 0),
        ([both, {("a", "y"), ("b", "y")}], 1),
        ([both, {("b", "x"), ("b", "y")}], 1),
        ([both, {("a", "y"), ("b", "x")}], 0),
    ):
        pairs = Fixed([one, two], [x, y], {1: (0, 0)}, _Reach(set(), False, set())).pairs
        pairs._channel = Mock(ends=(one.address.ip, x.address.ip))
        for links in looks:
            pairs._look_after_connection(links)
        assert pairs._lose.call_count == opened, looks  # type: ignore[attr-defined]


def test_may_ask__what_is_refused_costs_nothing() -> None:
    one, x = here(1, "a", "10.0.1.1/24"), there("x", "10.0.1.2/24")
    pairs = Fixed([one], [x], {}, _Reach(set(), False, set())).pairs
    pairs._channel = Mock(received_bytes=0)
    assert not any(pairs._may_ask(PortPair(one, x)) for _ in range(150))
    pairs._channel.received_bytes = 2000
    assert pairs._may_ask(PortPair(one, x))


async def test_infos__a_query_changes_no_plane_of_a_host_with_itself() -> None:
    config = loopback_config(**two_planes())
    async with joined(config, config) as pair:
        await pair.near.pairs()
        assert pair.near._pairs is not None
        assert pair.near._pairs._yielding == set()


async def test_infos__of_a_configured_plane_without_a_port_at_the_peer() -> None:
    one, other = here(1, "eth0", "fd00::1/128"), there("x", "fd00::2/128")
    proofs = {1: PairProof(2, 2, MTU), 2: PairProof(2)}
    case = Fixed([one], [other], {1: (0, 0)}, _Reach(set(), False, set()), proofs, fixed=True)
    assert [*await case.states()] == [("fd00::1", "fd00::2")]
