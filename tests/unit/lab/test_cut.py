# SPDX-License-Identifier: Apache-2.0
"""The division of a test bed between machines."""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv6Address

import pytest

from mrc.lab import machines as partition
from mrc.lab.machines import BedMachine, Machines
from mrc.testbed.plan import LOWER, UPPER, BedPlan, make_plan
from mrc.testbed.shape import MANAGEMENT, Fabric, Shape

SHAPES = {
    "default": (2, Shape()),
    "clos": (2, Shape(hosts=8, planes=4, t0=4, t1=3)),
    "three": (3, Shape(hosts=12, planes=2, t0=4, t1=4)),
    "absent": (3, Shape(hosts=6, planes=2, t0=3, absent=("link:h1.1", "t1:2.0", "uplink:1.0.1"))),
}
every_shape = pytest.mark.parametrize("count, shape", SHAPES.values(), ids=SHAPES)


def machines(count: int, here: int = 0) -> Machines:
    return Machines(tuple(BedMachine(f"m{i}", f"192.0.2.{i + 1}") for i in range(count)), here=here)


def parts(shape: Shape, count: int) -> list[BedPlan]:
    whole = make_plan("lab", shape)
    return [partition.part(whole, machines(count, here)) for here in range(count)]


@every_shape
def test_part__each_node_is_on_one_machine(count: int, shape: Shape) -> None:
    whole = make_plan("lab", shape)
    found = Counter(name for part in parts(shape, count) for name in part.nodes)
    assert found == Counter(dict.fromkeys(whole.nodes, 1) | {MANAGEMENT: count})
    configs = [name for part in parts(shape, count) for name in part.configs]
    assert configs == list(whole.configs)


@every_shape
def test_part__hosts_are_with_their_t0s(count: int, shape: Shape) -> None:
    for part in parts(shape, count):
        for host in part.configs:
            t0 = shape.t0_of(int(host[1:]))
            for plane in shape.planes_of(int(host[1:])):
                assert f"t0-{plane}-{t0}" in part.nodes


@every_shape
def test_part__each_link_is_whole_on_one_machine_or_has_an_end_on_two(
    count: int, shape: Shape
) -> None:
    whole = make_plan("lab", shape)
    ends = Counter(
        end[:2] for part in parts(shape, count) for each in part.links for end in each.ends
    )
    between = count * (count - 1)
    assert ends.total() == 2 * len(whole.links) + between
    assert set(ends) >= {end[:2] for link in whole.links for end in link.ends}
    tunnels = [
        (link.tunnel, here)
        for here, part in enumerate(parts(shape, count))
        for link in part.links
        if link.tunnel is not None
    ]
    by_vni = Counter(tunnel.vni for tunnel, _ in tunnels)
    assert set(by_vni.values()) == {2}
    for tunnel, here in tunnels:
        (other,) = (
            at for found, at in tunnels if (found.vni, found.end) == (tunnel.vni, 1 - tunnel.end)
        )
        assert other != here
        assert tunnel.remote == machines(count).every[other].ip


def test_part__two_beds_have_other_vnis() -> None:
    shape, found = Shape(), set()
    for name in ("lab", "lab2"):
        part = partition.part(make_plan(name, shape), machines(2))
        found.add(next(link.tunnel.vni >> 16 for link in part.links if link.tunnel))
    assert len(found) == 2


@every_shape
def test_part__management_leads_to_every_host(count: int, shape: Shape) -> None:
    """Each address of a host elsewhere leads to its machine, by the other end of that link."""
    of = partition.owners_of(make_plan("lab", shape), count)
    for here, part in enumerate(parts(shape, count)):
        node = part.nodes[MANAGEMENT]
        names = {name for link in part.links for at, name, _ in link.ends if at == MANAGEMENT}
        assert names == {f"m{at}" for at in range(count) if at != here} | {*part.configs}
        for host in make_plan("lab", shape).configs:
            number = int(host[1:])
            at = of[host]
            way = host if at == here else f"m{at}"
            (route,) = (
                each
                for each in node.routes
                if each.dst.network_address == shape.addresses.oob(number)
            )
            far = LOWER if at >= here else UPPER
            assert (route.dev, route.via) == (way, far)
            ipv4 = shape.addresses.oob_ipv4(number).ip
            assert [each[0] for each in node.ipv4 if each[2] == ipv4] == [way]
            known = [each for each in node.neighbours if each[1] == ipv4]
            assert [each[0] for each in known] == ([] if at == here else [way])
        for at in range(count):
            if at != here:
                own = UPPER if at > here else LOWER
                assert own_address(node.addresses, f"m{at}") == own


def own_address(addresses: tuple[tuple[str, object], ...], interface: str) -> IPv6Address:
    (found,) = (each for name, each in addresses if name == interface)
    return IPv6Address(str(found).partition("/")[0])


@pytest.mark.more
def test_shares__deal_out_t1s_of_every_plane() -> None:
    shape = Shape(hosts=64, planes=4, t0=8, t1=4)
    shares = partition.shares(make_plan("lab", shape), 3)
    counts = [
        Counter(name[:5] for name in each.switches if name.startswith("t1")) for each in shares
    ]
    for plane in shape.plane_numbers():
        assert all(1 <= count[f"t1:{plane}."] <= 2 for count in counts)
    assert [len(each.hosts) for each in shares] == [24, 24, 16]


def test_check__refuses_what_cannot_be_cut() -> None:
    with pytest.raises(ValueError, match="3 machines for 2 T0s in a plane"):
        partition.check_partition(Shape(), 3)
    with pytest.raises(ValueError, match="use a kernel fabric over several"):
        partition.check_partition(Shape(fabric=Fabric.EMULATED), 2)
