# SPDX-License-Identifier: Apache-2.0
"""Test beds with shapes other than the default, in both fabrics: their paths and faults, drained
parts, links with properties of their own or absent, topology files, and three tiers.

h0 -+- t0:P.0 --+-- t1:P.0 --+-- t0:P.1 -+- h2        P = 1, 2
h1 -+           +-- t1:P.1 --+           +- h3
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from netns.processes import Hosts, run
from printed import printed
from slowness import until

from mrc.cli.main import main
from mrc.errors import ArgumentError, NetlinkError
from mrc.linux import netns
from mrc.testbed import capture, shape
from mrc.testbed.bed import Testbed
from mrc.testbed.faults import Mode
from mrc.testbed.shape import Fabric
from mrc.testbed.tiers import LinkChange
from mrc.testbed.topology import Addresses

from .conftest import (
    PORT,
    arrivals,
    bed_of,
    check_fault,
    fresh_name,
    probe,
    probing,
    udp_pair,
)

pytestmark = pytest.mark.usefixtures("healed")

SHAPE = {"hosts": 4, "planes": 2, "t0": 2, "t1": 2, "rate": "1gbit"}
NEAR = {"t0:1.0", "t0:2.0"}
FAR = {"t1:1.0", "t1:1.1", "t1:2.0", "t1:2.1"}

# Paths that a fault disables: from h0 to h1, from h0 to h2, from h3 to h1.
FAULTS: dict[str, tuple[set[str], set[str], set[str]]] = {
    "plane:2": ({"t0:2.0"}, {"t1:2.0", "t1:2.1"}, {"t1:2.0", "t1:2.1"}),
    "t1:1.1": (set(), {"t1:1.1"}, {"t1:1.1"}),
    "t0:2.0": ({"t0:2.0"}, {"t1:2.0", "t1:2.1"}, {"t1:2.0", "t1:2.1"}),
    "t0:2.1": (set(), {"t1:2.0", "t1:2.1"}, {"t1:2.0", "t1:2.1"}),
    "link:h0.1": ({"t0:1.0"}, {"t1:1.0", "t1:1.1"}, set()),
    "link:h1.2": ({"t0:2.0"}, set(), {"t1:2.0", "t1:2.1"}),
    "uplink:1.0.1": (set(), {"t1:1.1"}, {"t1:1.1"}),
    "uplink:2.1.0": (set(), {"t1:2.0"}, {"t1:2.0"}),
}


bed = bed_of(*Fabric, **SHAPE)


@pytest.mark.parametrize("fabric", Fabric)
def test_up__of_more_parts_than_open_files(bed_name: str, fabric: Fabric) -> None:
    """65 namespaces, and a process that may have 60 files open."""
    up = ("up", "--name", bed_name, "--hosts", "8", "--planes", "4", "--t1", "6", "--t0", "8")
    words = f"ulimit -n 60; exec '{sys.executable}' -m mrc testbed"
    command = ["bash", "-c", f'{words} "$@"', "bash", *up, "--fabric", fabric]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    built = Testbed.existing(bed_name)
    assert set(probe(built, 0, 7)) == {path.name for path in built.shape.paths(0, 7)}
    built.down()


@pytest.mark.default
def test_paths__below_one_t0_and_over_every_t1(bed: Testbed) -> None:
    for src, dst, expected in ((0, 1, NEAR), (1, 0, NEAR), (0, 3, FAR), (3, 1, FAR)):
        assert probe(bed, src, dst) == Counter(expected)


@pytest.mark.default
@pytest.mark.parametrize("mode", [*Mode])
@pytest.mark.parametrize("target", FAULTS)
def test_fail__kills_its_paths_and_no_others(bed: Testbed, target: str, mode: Mode) -> None:
    near, far, back = FAULTS[target]
    check_fault(bed, target, mode, (0, 1, NEAR, near), (0, 2, FAR, far), (3, 1, FAR, back))


def one_way_s(bed: Testbed) -> float:
    """Seconds that a datagram takes from h0 to h1."""
    with udp_pair(bed) as (rx, tx):
        started = time.monotonic()
        tx.sendto(b"x", (str(Addresses().on_path(1, 1, 0)), PORT))
        rx.recv(1)
        return time.monotonic() - started


def has_netem(namespace: str) -> bool:
    argv = ["ip", "netns", "exec", namespace, *["tc", "qdisc", "add", "dev", "lo", "root", "netem"]]
    return subprocess.run(argv, check=False, capture_output=True).returncode == 0


def test_up__delays_or_says_what_the_kernel_lacks(
    bed_name: str, namespace_pair: tuple[str, str]
) -> None:
    """Goal: the test bed has the requested delay, or does not come up."""
    delayed = Testbed(bed_name, planes=1, t1=1, delay_ns=5_000_000)
    if has_netem(namespace_pair[0]):
        delayed.up()
        assert one_way_s(delayed) >= 4 * 0.005  # four links
    else:
        with pytest.raises(NetlinkError, match="CONFIG_NET_SCH_NETEM, or --fabric emulated"):
            delayed.up()
        assert not [name for name in netns.names() if bed_name in name]


def test_fail__duplicates_and_corrupts_where_the_kernel_has_netem(
    bed_name: str, namespace_pair: tuple[str, str]
) -> None:
    """Goal: netem applies the fault, not only our records, and healing ends it."""
    if not has_netem(namespace_pair[0]):
        pytest.skip("this kernel has no netem: tools/maintainers/kernels runs one that has it")
    with Testbed(bed_name, planes=1, t1=1) as bed:
        (path,) = probe(bed)
        bed.fail("plane:1", duplicate=1.0)
        assert probe(bed)[path] >= 2
        bed.fail("plane:1", corrupt=1.0)
        assert probe(bed, each=20)[path] < 20
        bed.heal("all")
        assert probe(bed, each=20) == {path: 20}


# ---- From a file ----------------------------------------------------------------------------

FILE = """
[topology]
hosts = 4
planes = 2
t0 = 2
t1 = 1
host_rate = "1Gbit/s"
fabric_rate = "1Gbit/s"
mtu = 1500

[[links]]
target = "plane:2"
rate = "2Mbit/s"

[addresses]
block = "5f00::/16"
hosts = "fd01:b::/32"
management = "fd01:c::/64"
"""


@pytest.fixture(params=[*Fabric])
def from_file(request: pytest.FixtureRequest, tmp_path: Path, bed_name: str) -> Testbed:
    path = tmp_path / "bed.toml"
    path.write_text(FILE)
    argv = ["testbed", "up", str(path), "--name", bed_name, "--fabric", request.param]
    assert main(argv) == 0
    assert main(argv) == 0  # a second time is harmless
    return Testbed.existing(bed_name)


def test_up__from_a_file(from_file: Testbed) -> None:
    """Its addresses carry packets, and its planes have the rates in the file."""
    assert probe(from_file, 0, 1) == Counter({"t0:1.0", "t0:2.0"})
    assert probe(from_file, 0, 2) == Counter({"t1:1.0", "t1:2.0"})
    assert from_file.measure(0)["h0>t0:2.0"].rate_bps == 2_000_000
    assert from_file.measure(0)["h0>t0:1.0"].rate_bps == 10**9
    addresses = from_file.shape.addresses
    assert str(addresses.host(3)) == "fd01:b:3::1"
    assert f"inet6 {addresses.oob(0)}" in run(from_file, "h0", "ip", "-6", "address")


SMALL = """
[topology]
hosts = 2
planes = 1
t1 = 1

[[links]]
target = "uplink:1.1.0"
mtu = 3000
"""


@pytest.mark.parametrize("fabric", [*Fabric])
def test_measure__counts_packets_too_large_for_a_link(
    fabric: Fabric, bed_name: str, tmp_path: Path
) -> None:
    """The T1 drops them, as the last switch that could send them on."""
    path = tmp_path / "bed.toml"
    path.write_text(SMALL)
    assert main(["testbed", "up", str(path), "--name", bed_name, "--fabric", fabric]) == 0
    bed = Testbed.existing(bed_name)
    (dst,) = [str(path.dst) for path in bed.shape.paths(0, 1)]
    with udp_pair(bed) as (rx, tx):
        for size in (2000, 4000, 4000, 4000, 2000):
            tx.sendto(bytes(size), (dst, PORT))
        assert [len(rx.recv(9000)) for _ in range(2)] == [2000, 2000]
    lost = {hop: found.lost for hop, found in bed.measure(0).items() if found.lost}
    assert lost == {"t1:1.0>t0:1.1": 3}


# ---- Drained parts -------------------------------------------------------------------------------


@pytest.fixture
def undrained(bed: Testbed, healed: None) -> Iterator[None]:
    yield
    bed.undrain("all")


def routes(bed: Testbed, host: int, peer: int) -> tuple[set[str], int]:
    """The paths over which a host has a route to a peer, and how many of them ECMP uses."""
    argv = ["ip", "-n", bed.plan.nodes[f"h{host}"].namespace, "-6", "route", "show"]
    shown = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    lines = shown.replace("\n\t", " ").splitlines()
    there = {line.split()[0]: line.count("encap seg6 ") for line in lines}
    paths = {path.name for path in bed.shape.paths(host, peer) if str(path.dst) in there}
    return paths, there[str(bed.shape.addresses.host(peer))]


@pytest.mark.usefixtures("undrained")
@pytest.mark.parametrize(
    ("target", "near", "far", "other"),
    [
        ("plane:2", {"t0:1.0"}, {"t1:1.0", "t1:1.1"}, {"t1:1.0", "t1:1.1"}),
        ("t1:1.1", NEAR, FAR - {"t1:1.1"}, FAR - {"t1:1.1"}),
        ("t0:2.0", {"t0:1.0"}, {"t1:1.0", "t1:1.1"}, {"t1:1.0", "t1:1.1"}),
        ("link:h0.1", {"t0:2.0"}, {"t1:2.0", "t1:2.1"}, FAR),
        ("uplink:1.1.0", NEAR, FAR - {"t1:1.0"}, FAR - {"t1:1.0"}),
    ],
)
def test_drain__withdraws_the_routes_over_it(
    bed: Testbed, target: str, near: set[str], far: set[str], other: set[str]
) -> None:
    """From h0 to h1 and h2, and from h3 to h1; both ways."""
    assert bed.drain(target) is True
    assert bed.drain(target) is False
    assert bed.drained() == (target,)
    for src, dst, left in ((0, 1, near), (1, 0, near), (0, 2, far), (2, 0, far), (3, 1, other)):
        assert routes(bed, src, dst) == (left, len(left))
    assert bed.undrain(target) == [target] and bed.drained() == ()
    assert routes(bed, 0, 1) == (NEAR, 2) and routes(bed, 3, 1) == (FAR, 4)
    assert set(probe(bed, 0, 2)) == FAR


@pytest.mark.usefixtures("undrained")
def test_drain__refuses_the_last_path(bed: Testbed) -> None:
    bed.drain("plane:2")
    with pytest.raises(ArgumentError, match=r"^t0:1.1: h0 and h2 .* since plane:2 is drained$"):
        bed.drain("t0:1.1")
    bed.fail("t1:1.0", Mode.DOWN)
    lost = r"^t1:1.1: h0 and h2 would lose their last path, since plane:2 is drained, t1:1.0 fails$"
    with pytest.raises(ArgumentError, match=lost):
        bed.drain("t1:1.1")
    with pytest.raises(ArgumentError, match=r"in both directions: link:h0\.1"):
        bed.drain("h0>t0:1.0")
    assert bed.drained() == ("plane:2",)


@pytest.mark.usefixtures("undrained")
def test_drain__outlasts_a_fault_and_its_healing(bed: Testbed) -> None:
    bed.drain("t1:1.0")
    bed.fail("link:h0.1", Mode.DOWN)
    bed.heal("all")
    assert routes(bed, 0, 2) == (FAR - {"t1:1.0"}, 3)


@pytest.mark.usefixtures("undrained")
@pytest.mark.default
def test_drain__while_data_travel(bed: Testbed, hosts: Hosts) -> None:
    """No packet is lost; the drained plane carries no more data, and comes back."""
    hosts.start("h2", "perf", "--server").until_listening()
    few = ("-l", "64K", "--depth", "2", "-b", "50mbit")  # no queue overflows
    pace = (*few, "-t", "600", "-i", "0.1")
    perf = hosts.start("h0", "perf", "h2", *pace, "--json-stream")
    assert perf.process.stdout is not None
    events = (printed("perf --json-stream", line) for line in perf.process.stdout)

    def loads(plane: int) -> Iterator[bool]:
        """Whether each interval carries data on a plane."""
        for event in events:
            if event["event"] == "interval":
                yield any(
                    each["plane"] == plane and each["sent_bytes"] > 0 for each in event["planes"]
                )

    assert next(each for each in loads(2) if each)
    bed.drain("plane:2")
    lost = sum(each["lost"] + each["dropped"] for each in bed.links().values())
    assert next(not each for each in loads(2) if not each)
    assert next(each for each in loads(1) if each)
    bed.undrain("plane:2")
    assert next(each for each in loads(2) if each)
    assert sum(each["lost"] + each["dropped"] for each in bed.links().values()) == lost


@pytest.mark.usefixtures("undrained")
def test_commands__say_what_is_drained(bed: Testbed, capsys: pytest.CaptureFixture[str]) -> None:
    name = ("--name", bed.name)
    for _ in range(2):
        assert main(["testbed", "drain", "t1:1.0", *name]) == 0
    assert main(["testbed", "drain", "all", *name]) == 2
    assert main(["testbed", "status", *name]) == 0
    assert main(["testbed", "undrain", "all", *name]) == 0
    told = capsys.readouterr()
    assert told.err == (
        "mrc testbed drain: all: h0 and h1 would lose their last path, since t1:1.0 is drained\n"
    )
    lines = told.out.splitlines()
    assert lines[:2] == ["t1:1.0 is drained", "t1:1.0 was already drained"]
    assert lines[-2:] == ["t1:1.0 is drained", "in use again: t1:1.0; still drained: none"]
    assert main(["testbed", "drain", "t1:1.0", *name, "--json"]) == 0
    assert printed("testbed drain", capsys.readouterr().out)["changed"] == ["t1:1.0"]
    assert main(["testbed", "undrain", "t1:1.0", *name, "--json"]) == 0
    assert printed("testbed undrain", capsys.readouterr().out)["drained"] == []
    until(lambda: routes(bed, 0, 2) == (FAR, 4))


# ---- Links, or single directions of them, with properties of their own, or absent ----------------


EACH = Counter(FAR)
UDP_SEGMENT = 103
LINKS = (
    LinkChange("t0:1.0>t1:1.1", loss=1.0),
    LinkChange("t1:2.0>t0:2.1", mtu=8000),
    LinkChange("h3>t0:1.1", loss=1.0),
    LinkChange("t0:2.1>h3", rate_bps=100_000_000),
)


own = bed_of(*Fabric, **SHAPE, links=LINKS)


def lost_since(before: dict[str, dict[str, int]], bed: Testbed) -> dict[str, int]:
    """The packets that each direction has lost since then, if any."""
    grown = {name: now["lost"] - before[name]["lost"] for name, now in bed.links().items()}
    return {name: lost for name, lost in grown.items() if lost}


def test_own_links__lose_in_one_direction(own: Testbed) -> None:
    """Datagrams of full size: those for h2 over T1 0 of plane 2 are larger than its MTU."""
    before = own.links()
    assert probe(own, 0, 2) == EACH - Counter({"t1:1.1": 1, "t1:2.0": 1})
    assert probe(own, 2, 0) == EACH
    assert probe(own, 3, 1) == EACH - Counter({"t1:1.0": 1, "t1:1.1": 1})
    lost = {"t0:1.0>t1:1.1": 1, "h3>t0:1.1": 2, "t1:2.0>t0:2.1": 1}
    assert lost_since(before, own) == lost


def test_own_links__keep_what_they_lose_when_faults_end(own: Testbed) -> None:
    for target, mode in (("uplink:2.1.0", "down"), ("uplink:1.0.1", "silent"), ("t1:1.1", "down")):
        own.fail(target, mode)
        own.heal(target)
    assert probe(own, 0, 2) == EACH - Counter({"t1:1.1": 1, "t1:2.0": 1})
    assert probe(own, 2, 0) == EACH


def test_fail__one_direction_of_a_link(own: Testbed) -> None:
    own.fail("t0:2.0>t1:2.1")
    assert probe(own, 0, 2) == Counter({"t1:1.0": 1})
    assert probe(own, 2, 0) == EACH
    with pytest.raises(ArgumentError, match="down in both directions"):
        own.fail("t0:2.0>t1:2.1", "down")


def test_fail__an_mtu(own: Testbed) -> None:
    """Of switches and of a host, each in one direction, also after a link came up again."""
    own.fail("t0:2.0>t1:2.1", mtu=3000)
    own.fail("h0>t0:1.0", mtu=3000)
    before = own.links()
    assert probe(own, 0, 2) == Counter()
    assert probe(own, 2, 0) == EACH
    lost = {"t0:2.0>t1:2.1": 1, "h0>t0:1.0": 2, "t1:2.0>t0:2.1": 1}
    assert lost_since(before, own) == lost
    own.fail("uplink:2.0.1", "down")
    own.heal("uplink:2.0.1")
    own.heal("h0>t0:1.0")
    assert probe(own, 0, 2) == Counter({"t1:1.0": 1})
    own.heal("t0:2.0>t1:2.1")
    assert probe(own, 0, 2) == EACH - Counter({"t1:1.1": 1, "t1:2.0": 1})


def test_fail__an_mtu_measures_packets_within_a_burst(own: Testbed) -> None:
    """A host's bursts and those that a switch forwards; of one burst 4 packets, of 2,000 bytes."""
    path = next(path for path in own.shape.paths(1, 2) if path.name == "t1:2.1")
    for target in ("h1>t0:2.0", "t1:2.1"):
        own.fail(target, mtu=3000)
        with udp_pair(own, "h2", "h1") as (rx, tx):
            for bytes_each in (4000, 2000):  # the larger ones are lost
                tx.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, bytes_each)
                tx.sendto(bytes(4 * bytes_each), (str(path.dst), PORT))
            assert [len(rx.recv(65536)) for _ in range(4)] == [2000] * 4
        own.heal(target)


def test_measure__each_direction_has_its_rate(own: Testbed) -> None:
    links = own.measure(0.001)
    rates = [links[name].rate_bps for name in ("t0:2.1>h3", "h3>t0:2.1")]
    assert rates == [100_000_000, 1_000_000_000]


def test_transfer__over_paths_that_carry_full_packets(own: Testbed, tmp_path: Path) -> None:
    with Hosts(own) as hosts:
        hosts.transfer("h0", "h2", tmp_path)


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
    with Hosts(uneven) as hosts:
        hosts.transfer("h0", "h4", tmp_path)
        sent = {name: link["bytes"] for name, link in uneven.links().items()}
        assert sent["h0>t0:2.0"] > 4 << 20 and sent["t0:2.1>h4"] > 4 << 20
        hosts.start("h4", "recv", "--output", tmp_path).until_listening()
        told = hosts.start("h1", "paths", "h4", "--json").ends(0)
        assert '"t1:2.1"' in told and '"t1:3.1"' in told and '"t1:1.1"' not in told


def test_absent__faults_of_what_exists(uneven: Testbed) -> None:
    with pytest.raises(ArgumentError, match="is absent"):
        uneven.fail("link:h0.3")
    uneven.fail("plane:2", "down")
    assert uneven.heal("all") == ["plane:2"]
    names = Counter(path.name for path in uneven.shape.paths(4, 0))
    with probing(uneven, 4, 0) as pair:
        pair.send(names)
    assert pair.arrived == [names]


# ---- Three tiers ---------------------------------------------------------------------------------


IN_POD = {"t1:1.0", "t1:1.1"}
BACK_IN_POD = {"t1:1.2", "t1:1.3"}
OVER_T2 = {f"t2:1.{m}" for m in range(4)}

# Paths that a fault disables: from h0 to h1, from h0 to h2, from h3 to h2.
FAULTS_IN_PODS: dict[str, tuple[set[str], set[str], set[str]]] = {
    "t2:1.3": (set(), {"t2:1.3"}, set()),
    "core:1.1.3": (set(), {"t2:1.3"}, set()),
    "core:1.2.0": (set(), {"t2:1.0"}, set()),
    "t1:1.0": ({"t1:1.0"}, {"t2:1.0", "t2:1.2"}, set()),
    "t1:1.3": (set(), {"t2:1.1", "t2:1.3"}, {"t1:1.3"}),
    "uplink:1.2.3": (set(), {"t2:1.1", "t2:1.3"}, {"t1:1.3"}),
    "t0:1.0": (IN_POD, OVER_T2, set()),
}


pods = bed_of(*Fabric, hosts=4, planes=1, t0=4, t1=4, pods=2, t2=4, rate="1gbit")


@pytest.mark.default
def test_pods__paths_over_every_t1_of_the_pod_and_every_t2(pods: Testbed) -> None:
    cases = ((0, 1, IN_POD), (3, 2, BACK_IN_POD), (0, 3, OVER_T2), (2, 1, OVER_T2))
    for src, dst, expected in cases:
        assert probe(pods, src, dst) == Counter(expected)


@pytest.mark.parametrize("mode", [*Mode])
@pytest.mark.parametrize("target", FAULTS_IN_PODS)
def test_pods__fail_kills_its_paths_and_no_others(pods: Testbed, target: str, mode: Mode) -> None:
    near, far, back = FAULTS_IN_PODS[target]
    cases = (0, 1, IN_POD, near), (0, 2, OVER_T2, far), (3, 2, BACK_IN_POD, back)
    check_fault(pods, target, mode, *cases)


@pytest.mark.parametrize(
    ("target", "there", "back"),
    [
        ("t1:1.1>t2:1.3", {"t2:1.3"}, set()),
        ("t2:1.3>t1:1.1", set(), {"t2:1.3"}),
        ("t2:1.0>t1:1.2", {"t2:1.0"}, set()),
    ],
)
def test_pods__fail_one_direction(
    pods: Testbed, target: str, there: set[str], back: set[str]
) -> None:
    check_fault(pods, target, Mode.SILENT, (0, 2, OVER_T2, there), (2, 0, OVER_T2, back))


def test_pods__fail_loses_a_share_once_at_a_t1(pods: Testbed) -> None:
    """A T1 loses a packet once, whether it goes on up or down."""
    pods.fail("t1:1.1", loss=0.5)
    assert 57 <= arrivals(pods, 200, {"t1:1.0"})["t1:1.1"] <= 143


def test_pods__drain_withdraws_the_routes_over_it(pods: Testbed) -> None:
    for target, near, far in (
        ("t2:1.1", IN_POD, OVER_T2 - {"t2:1.1"}),
        ("core:1.3.3", IN_POD, OVER_T2 - {"t2:1.3"}),
        ("t1:1.0", {"t1:1.1"}, {"t2:1.1", "t2:1.3"}),
    ):
        pods.drain(target)
        for src, dst, left in ((0, 1, near), (0, 2, far), (3, 0, far)):
            assert routes(pods, src, dst)[0] == left
        pods.undrain(target)
    pods.drain("t1:1.0")
    with pytest.raises(ArgumentError, match=r"t1:1.3: h0 and h2 would lose their last path"):
        pods.drain("t1:1.3")
    pods.undrain("all")
    assert routes(pods, 0, 2)[0] == OVER_T2


def test_pods__links_counts_each_direction(pods: Testbed) -> None:
    before = pods.links()
    assert len(before) == 2 * (4 + 8 + 8)
    with probing(pods, 0, 2) as pair:
        for _ in range(3):
            pair.send({"t2:1.3"})
    after = pods.links()
    for hop in ("h0>t0:1.0", "t0:1.0>t1:1.1", "t1:1.1>t2:1.3", "t2:1.3>t1:1.3", "t1:1.3>t0:1.2"):
        assert after[hop]["packets"] - before[hop]["packets"] >= 3


def test_pods__heal_restores_a_link_to_a_t2_that_was_taken_down_by_hand(pods: Testbed) -> None:
    if pods.shape.fabric is Fabric.EMULATED:
        with pytest.raises(ArgumentError, match=r"t2:1\.3 is no namespace"):
            pods.host_command("t2:1.3", ["true"])
        return
    argv, env = pods.host_command("t2:1.3", ["ip", "link", "set", "t1-3", "down"])
    subprocess.run(argv, env=env, check=True)
    assert pods.lost() == {"t2:1.3:t1-3": "core:1.3.3"}
    assert pods.heal("all") == ["core:1.3.3"]
    assert probe(pods, 0, 2) == Counter(OVER_T2)


def test_pods__capture_at_the_links_of_a_t2(pods: Testbed) -> None:
    if pods.shape.fabric is Fabric.EMULATED:
        with pytest.raises(ValueError, match=r"t2:1\.3 has no interface"):
            capture.interfaces(pods.plan, "t2:1.3")
        return
    assert capture.interfaces(pods.plan, "t2:1.3") == [("t2-1-3", "t1-1"), ("t2-1-3", "t1-3")]
    assert capture.interfaces(pods.plan, "core:1.3.3") == [("t1-1-3", "t2-3")]
    assert ("t1-1-3", "t2-1") in capture.interfaces(pods.plan, "t1:1.3")
