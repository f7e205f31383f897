# SPDX-License-Identifier: Apache-2.0
"""Test beds whose links, or single directions of them, have properties of their own or are absent.

h0 -+- t0:P.0 --+-- t1:P.0 --+-- t0:P.1 -+- h2        P = 1, 2
h1 -+           +-- t1:P.1 --+           +- h3
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from slowness import PATIENCE

from mrc.errors import ArgumentError
from mrc.fabric.faults import LinkChange
from mrc.testbed import shape
from mrc.testbed.bed import Testbed
from mrc.testbed.shape import Fabric

from .conftest import PORT, fresh_name, probe, probing, udp_socket
from .processes import Hosts

pytestmark = pytest.mark.usefixtures("healed")

_UDP_SEGMENT = 103
ALL = Counter({"t1:1.0": 1, "t1:1.1": 1, "t1:2.0": 1, "t1:2.1": 1})
LINKS = (
    LinkChange("t0:1.0>t1:1.1", loss=1.0),
    LinkChange("t1:2.0>t0:2.1", mtu=8000),
    LinkChange("h3>t0:1.1", loss=1.0),
    LinkChange("t0:2.1>h3", rate_bps=100_000_000),
)


@pytest.fixture(scope="module", params=[*Fabric])
def bed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    with Testbed(
        fresh_name(), hosts=4, planes=2, t0=2, t1=2, rate="1gbit", fabric=request.param, links=LINKS
    ) as bed:
        yield bed


def test_links__lose_in_one_direction(bed: Testbed) -> None:
    """Datagrams of full size: those for h2 over T1 0 of plane 2 are larger than its MTU."""
    before = bed.links()
    assert probe(bed, 0, 2) == ALL - Counter({"t1:1.1": 1, "t1:2.0": 1})
    assert probe(bed, 2, 0) == ALL
    assert probe(bed, 3, 1) == ALL - Counter({"t1:1.0": 1, "t1:1.1": 1})
    lost = {
        name: now["lost"] - before[name]["lost"]
        for name, now in bed.links().items()
        if now["lost"] > before[name]["lost"]
    }
    assert lost == {"t0:1.0>t1:1.1": 1, "h3>t0:1.1": 2, "t1:2.0>t0:2.1": 1}


def test_links__keep_what_they_lose_when_faults_end(bed: Testbed) -> None:
    for target, mode in (("uplink:2.1.0", "down"), ("uplink:1.0.1", "silent"), ("t1:1.1", "down")):
        bed.fail(target, mode)
        bed.heal(target)
    assert probe(bed, 0, 2) == ALL - Counter({"t1:1.1": 1, "t1:2.0": 1})
    assert probe(bed, 2, 0) == ALL


def test_fail__one_direction(bed: Testbed) -> None:
    bed.fail("t0:2.0>t1:2.1")
    assert probe(bed, 0, 2) == Counter({"t1:1.0": 1})
    assert probe(bed, 2, 0) == ALL
    with pytest.raises(ArgumentError, match="down in both directions"):
        bed.fail("t0:2.0>t1:2.1", "down")


def test_fail__an_mtu(bed: Testbed) -> None:
    """Of switches and of a host, each in one direction, also after a link came up again."""
    bed.fail("t0:2.0>t1:2.1", mtu=3000)
    bed.fail("h0>t0:1.0", mtu=3000)
    before = bed.links()
    assert probe(bed, 0, 2) == Counter()
    assert probe(bed, 2, 0) == ALL
    lost = {
        name: now["lost"] - before[name]["lost"]
        for name, now in bed.links().items()
        if now["lost"] > before[name]["lost"]
    }
    assert lost == {"t0:2.0>t1:2.1": 1, "h0>t0:1.0": 2, "t1:2.0>t0:2.1": 1}
    bed.fail("uplink:2.0.1", "down")
    bed.heal("uplink:2.0.1")
    bed.heal("h0>t0:1.0")
    assert probe(bed, 0, 2) == Counter({"t1:1.0": 1})
    bed.heal("t0:2.0>t1:2.1")
    assert probe(bed, 0, 2) == ALL - Counter({"t1:1.1": 1, "t1:2.0": 1})
    with pytest.raises(ArgumentError, match=r"mtu is 1000, not in 1280\.\.65536"):
        bed.fail("plane:1", mtu=1000)


def test_fail__an_mtu_measures_packets_within_a_burst(bed: Testbed) -> None:
    """A host's bursts and those that a switch forwards; of one burst 4 packets, of 2,000 bytes."""
    path = next(path for path in bed.shape.paths(1, 2) if path.name == "t1:2.1")
    for target in ("h1>t0:2.0", "t1:2.1"):
        bed.fail(target, mtu=3000)
        with udp_socket(bed, "h2") as rx, udp_socket(bed, "h1") as tx:
            rx.bind(("::", PORT))
            rx.settimeout(PATIENCE)
            for bytes_each in (4000, 2000):  # the larger ones are lost
                tx.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, bytes_each)
                tx.sendto(bytes(4 * bytes_each), (str(path.dst), PORT))
            assert [len(rx.recv(65536)) for _ in range(4)] == [2000] * 4
        bed.heal(target)


def test_measure__each_direction_has_its_rate(bed: Testbed) -> None:
    links = bed.measure(0.001)
    rates = [links[name].rate_bps for name in ("t0:2.1>h3", "h3>t0:2.1")]
    assert rates == [100_000_000, 1_000_000_000]


def test_transfer__over_paths_that_carry_full_packets(
    bed: Testbed, hosts: Hosts, tmp_path: Path
) -> None:
    file, inbox = tmp_path / "file", tmp_path / "inbox"
    file.write_bytes(os.urandom(4 << 20))
    inbox.mkdir()
    receiver = hosts.start("h2", "recv", "--once", "--output", inbox).until_listening()
    hosts.start("h0", "send", file, "h2").ends(0)
    receiver.ends(0)
    assert (inbox / "file").read_bytes() == file.read_bytes()


@pytest.fixture(scope="module", params=[*Fabric])
def uneven(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    with Testbed.of(fresh_name(), shape.load_topology("uneven", request.param).shape) as bed:
        yield bed


def test_absent__paths_between_all_hosts(uneven: Testbed) -> None:
    hosts = uneven.shape.host_numbers()
    assert hosts == (0, 1, 2, 3, 4)
    for a in hosts:
        for b in hosts:
            if a not in (b, 3):  # h3 loses packets
                names = Counter(path.name for path in uneven.shape.paths(a, b))
                with probing(uneven, a, b) as pair:
                    pair.send(names)
                assert pair.arrived == [names], (a, b)
    assert uneven.missing() == []


@pytest.mark.default
def test_absent__a_transfer_uses_the_planes_of_both(uneven: Testbed, tmp_path: Path) -> None:
    """h0 has planes 1 and 2, h4 has 2 and 3."""
    file, inbox = tmp_path / "file", tmp_path / "inbox"
    file.write_bytes(os.urandom(4 << 20))
    inbox.mkdir()
    hosts = Hosts(uneven)
    try:
        hosts.start("h4", "recv", "--output", inbox).until_listening()
        hosts.start("h0", "send", file, "h4").ends(0)
        assert (inbox / "file").read_bytes() == file.read_bytes()
        sent = {name: link["bytes"] for name, link in uneven.links().items()}
        assert sent["h0>t0:2.0"] > 4 << 20 and sent["t0:2.1>h4"] > 4 << 20
        told = hosts.start("h1", "paths", "h4", "--json").ends(0)
        assert '"t1:2.1"' in told and '"t1:3.1"' in told and '"t1:1.1"' not in told
    finally:
        hosts.end()


def test_absent__faults_of_what_exists(uneven: Testbed) -> None:
    with pytest.raises(ArgumentError, match="is absent"):
        uneven.fail("link:h0.3")
    uneven.fail("plane:2", "down")
    assert uneven.heal("all") == ["plane:2"]
    names = Counter(path.name for path in uneven.shape.paths(4, 0))
    with probing(uneven, 4, 0) as pair:
        pair.send(names)
    assert pair.arrived == [names]
