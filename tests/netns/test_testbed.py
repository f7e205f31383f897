# SPDX-License-Identifier: Apache-2.0
"""A test bed in the kernel and emulated: the paths, those that each fault disables, its commands,
and what users change by hand.

    h0 -- t0:P.0 --+-- t1:P.0 --+-- t0:P.1 -- h1        P = 1, 2
                   +-- t1:P.1 --+

A probe is one UDP datagram per path from h0 to h1. The received datagrams show the working paths;
the packets that the T1s forwarded show the routes.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from netns.processes import run
from printed import printed
from slowness import PATIENCE

from mrc.cli.main import main
from mrc.errors import ArgumentError, ConfigError, NetlinkError, StateError
from mrc.linux import netns
from mrc.testbed import build, emulator, state
from mrc.testbed.bed import Testbed
from mrc.testbed.faults import Fault, Mode
from mrc.testbed.shape import Fabric
from mrc.testbed.topology import Addresses

from .conftest import (
    PORT,
    arrivals,
    bed_of,
    probe,
    udp_pair,
)

pytestmark = pytest.mark.usefixtures("healed")

ADDRESSES = Addresses()
UDP_SEGMENT, UDP_GRO, SOL_UDP = 103, 104, 17
ALL = {"t1:1.0", "t1:1.1", "t1:2.0", "t1:2.1"}

bed = bed_of(*Fabric, planes=2, t1=2, rate="1gbit")


# An emulated fabric has no switches to look into.
has_switches = pytest.mark.parametrize("bed", [Fabric.KERNEL], indirect=True)


def forwarded(bed: Testbed) -> Counter[str]:
    """T1 -> bytes that its links received."""
    counts: Counter[str] = Counter()
    if bed.shape.fabric is Fabric.EMULATED:
        for hop, info in bed.links().items():
            if match := re.fullmatch(r"t0:.*>(t1:.*)", hop):
                counts[match[1]] += info["bytes"]
        return counts
    for plane in bed.shape.plane_numbers():
        for t1 in bed.shape.t1_numbers():
            with netns.inside(bed.plan.nodes[f"t1-{plane}-{t1}"].namespace):
                lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
            links = (line.split() for line in lines if line.strip().startswith("t0-"))
            counts[f"t1:{plane}.{t1}"] = sum(int(fields[1]) for fields in links)
    return counts


# ---- Paths ----------------------------------------------------------------------------------


@pytest.mark.default
def test_paths__all_live_in_both_directions(bed: Testbed) -> None:
    assert probe(bed, 0, 1) == Counter(ALL)
    assert probe(bed, 1, 0) == Counter(ALL)


def test_paths__each_crosses_its_own_t1(bed: Testbed) -> None:
    """Method: sends ten datagrams over one path at a time; only that path's T1 forwards them."""
    size = bed.shape.mtu - 112
    for path in bed.shape.paths(0, 1):
        before = forwarded(bed)
        with udp_pair(bed) as (rx, tx):
            for _ in range(10):
                tx.sendto(bytes(size), (str(path.dst), PORT))
                assert len(rx.recv(65536)) == size
        grown = {name: count - before[name] for name, count in forwarded(bed).items()}
        assert [name for name, count in grown.items() if count > 5 * size] == [path.name]


def test_paths__arrive_at_the_port_and_the_address_of_the_path(bed: Testbed) -> None:
    """The datapath requires this: a socket bound to a port gets only the packets of its plane."""
    with udp_pair(bed) as (rx, tx):
        rx.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"p2")
        rx.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        for path in bed.shape.paths(0, 1):
            tx.sendto(path.name.encode(), (str(path.dst), PORT))
        for t1 in (0, 1):
            data, control, _, source = rx.recvmsg(100, 100)
            address = socket.inet_ntop(socket.AF_INET6, control[0][2][:16])
            assert data.decode() == f"t1:2.{t1}"
            assert address == str(ADDRESSES.on_path(1, 2, t1))
            assert source[0] == str(ADDRESSES.in_plane(0, 2))


@has_switches
def test_paths__a_message_of_64_kib_passes_the_shapers_whole(bed: Testbed) -> None:
    with udp_pair(bed) as (rx, tx):
        rx.setsockopt(SOL_UDP, UDP_GRO, 1)
        tx.setsockopt(SOL_UDP, UDP_SEGMENT, 1024)
        message = bytes(63 * 1024)
        tx.sendto(message, (str(ADDRESSES.on_path(1, 1, 0)), PORT))
        assert len(rx.recv(1 << 17)) == len(message)


@has_switches
def test_paths__a_mark_on_the_outer_header_reaches_the_socket(bed: Testbed) -> None:
    hook = "type filter hook forward priority 0"
    marking = f"table ip6 marks {{ chain f {{ {hook}; ip6 ecn set ce; }}; }}\n"
    build.apply_rules({bed.plan.nodes["t1-1-0"].namespace: marking})
    try:
        with udp_pair(bed) as (rx, tx):
            rx.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
            tx.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 2)
            marks = []
            for t1 in (0, 1):
                tx.sendto(b"x", (str(ADDRESSES.on_path(1, 1, t1)), PORT))
                control = rx.recvmsg(100, 100)[1]
                marks.append(struct.unpack("i", control[0][2])[0])
        assert marks == [3, 2]
    finally:
        build.apply_rules({bed.plan.nodes["t1-1-0"].namespace: "delete table ip6 marks\n"})


# ---- Faults ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "carrier"), [(Mode.SILENT, "1"), (Mode.DOWN, "0")])
def test_fail__only_down_is_seen_by_the_host(bed: Testbed, mode: Mode, carrier: str) -> None:
    bed.fail("link:h0.1", mode)
    assert run(bed, "h0", "cat", "/sys/class/net/p1/carrier").strip() == carrier
    bed.heal("all")
    assert run(bed, "h0", "cat", "/sys/class/net/p1/carrier").strip() == "1"


@pytest.mark.parametrize(
    ("target", "lossy"),
    [
        ("plane:2", {"t1:2.0", "t1:2.1"}),
        ("t1:1.1", {"t1:1.1"}),
        ("t0:1.0", {"t1:1.0", "t1:1.1"}),
        ("link:h1.1", {"t1:1.0", "t1:1.1"}),
        ("uplink:2.1.0", {"t1:2.0"}),
    ],
)
def test_fail__loses_the_share_once(bed: Testbed, target: str, lossy: set[str]) -> None:
    """Half of 200 datagrams: 100 +- 43 is six sigma; if both hops lost half, 50 would arrive."""
    bed.fail(target, loss=0.5)
    arrived = arrivals(bed, 200, ALL - lossy)
    for name in ALL - lossy:
        assert arrived[name] == 200
    for name in lossy:
        assert 57 <= arrived[name] <= 143


def test_fail__a_rate(bed: Testbed) -> None:
    """The token bucket of a kernel link passes 80 KB of 180 KB at once; 100 KB take 80 ms."""
    size = bed.shape.mtu - 112
    bed.fail("plane:2", rate_share=0.01)
    with udp_pair(bed) as (rx, tx):
        began = time.monotonic()
        for _ in range(20):
            tx.sendto(bytes(size), (str(ADDRESSES.on_path(1, 2, 0)), PORT))
        for _ in range(20):
            rx.recv(65536)
        assert time.monotonic() - began >= 0.07  # a busy machine only adds to it
    assert bed.measure(0)["h0>t0:2.0"].rate_bps == 10_000_000
    bed.heal("all")
    assert bed.measure(0)["h0>t0:2.0"].rate_bps == 1_000_000_000
    if bed.shape.fabric is Fabric.KERNEL:
        assert "rate 1Gbit" in run(bed, "h0", "tc", "qdisc", "show", "dev", "p2")


def test_links__count_what_they_carry_and_lose(bed: Testbed) -> None:
    """In full datagrams: the kernel adds small packets, the more the longer it takes."""
    size = bed.shape.mtu - 112
    before = bed.links()
    probe(bed, each=5)
    bed.fail("uplink:1.1.1")
    probe(bed, each=5)
    after = bed.links()
    grown = {
        name: {key: after[name][key] - before[name][key] for key in ("bytes", "lost")}
        for name in after
    }
    assert {name for name, each in grown.items() if each["lost"]} == {"t1:1.1>t0:1.1"}
    assert grown["t1:1.1>t0:1.1"]["lost"] == 5
    assert grown["h0>t0:1.0"]["bytes"] // size == 20
    assert grown["t0:1.0>t1:1.1"]["bytes"] // size == 10
    assert grown["t0:1.1>h1"]["bytes"] // size == 15


def test_fail__several_at_once_heal_one_by_one(bed: Testbed) -> None:
    """A link with two faults stays down until both are healed."""
    bed.fail(["plane:1", "uplink:1.0.1"], Mode.DOWN)
    bed.fail("t1:2.0")
    assert probe(bed) == Counter({"t1:2.1"})
    bed.heal("plane:1")
    assert probe(bed) == Counter({"t1:1.0", "t1:2.1"})
    assert list(bed.faults()) == ["uplink:1.0.1", "t1:2.0"]
    bed.heal("t1:2.0")
    assert probe(bed) == Counter({"t1:1.0", "t1:2.0", "t1:2.1"})
    assert bed.heal("all") == ["uplink:1.0.1"]
    assert probe(bed) == Counter(ALL)


@pytest.mark.parametrize("first", ["t1:1.0", "uplink:1.1.0"])
def test_fail__both_ends_of_a_link_heal_in_any_order(bed: Testbed, first: str) -> None:
    """One fault sets the T1's end of the uplink down, the other the T0's end."""
    bed.fail("t1:1.0", Mode.DOWN)
    bed.fail("uplink:1.1.0", Mode.DOWN)
    bed.heal(first)
    assert probe(bed) == Counter(ALL - {"t1:1.0"})
    bed.heal("all")
    assert probe(bed) == Counter(ALL)


def test_fail__cut_off_in_the_middle_can_be_healed(
    bed: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(build, "apply_rules", interrupted)
        patch.setattr(emulator, "ask", interrupted)
        bed.fail("plane:1")
    assert bed.heal("all") == ["plane:1"]
    assert probe(bed) == Counter(ALL)


def test_fail__again_replaces_the_fault(bed: Testbed) -> None:
    for mode in (Mode.DOWN, Mode.SILENT, Mode.DOWN):
        bed.fail("t1:1.0", mode)
        assert bed.faults() == {"t1:1.0": Fault(mode)}
        assert probe(bed) == Counter(ALL - {"t1:1.0"})
    bed.heal("t1:1.0")
    assert probe(bed) == Counter(ALL)


# ---- Commands -------------------------------------------------------------------------------


@has_switches
def test_host_command__enters_switches(bed: Testbed) -> None:
    routes = run(bed, "t1:2.0", "ip", "-6", "route", "show", "table", "all")
    assert "fcbb:2:100::/48" in routes and "fcbb:1:" not in routes
    assert "dev h1" in run(bed, "t0:1.1", "ip", "-6", "route")
    assert "fd00:c::2" in run(bed, "mgmt", "ip", "-6", "route")


@has_switches
def test_host_command__in_a_switch_has_no_host_configuration(
    bed: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell in a host may start it."""
    monkeypatch.setenv("MRC_CONFIG", "/host.toml")
    assert run(bed, "t1:1.1", "sh", "-c", "echo ${MRC_CONFIG-none}") == "none\n"


def test_host_command__refuses(bed: Testbed) -> None:
    for where in ("plane:1", "link:h0.1", "t1-1-0", "-"):
        with pytest.raises(ArgumentError, match=r"is no host or switch: use h0..h1, t0:P.N"):
            bed.host_command(where, ["true"])
    if bed.shape.fabric is Fabric.EMULATED:
        with pytest.raises(ArgumentError, match=r"t0:1.0 is no namespace: one process"):
            bed.host_command("t0:1.0", ["true"])
    with pytest.raises(ArgumentError, match="no user mrc-nobody"):
        bed.host_command("h0", ["true"], user="mrc-nobody")


# ---- Up and down ----------------------------------------------------------------------------


@pytest.mark.default
def test_down__leaves_nothing(bed_name: str) -> None:
    bed = Testbed(bed_name, planes=1, t1=1)
    assert bed.up() is True
    assert not any(link["dropped"] for link in bed.links().values())  # also of the kernel itself
    assert bed.down().removed
    assert not [name for name in netns.names() if bed_name in name]
    assert not state.folder(bed_name).exists()
    assert not bed.down().removed


def test_down__leaves_others_alone(bed: Testbed, bed_name: str) -> None:
    """Two test beds side by side; one name is a prefix of the other."""
    longer = f"{bed.name}-h0"
    try:
        with Testbed(longer, planes=1, t1=1) as other:
            assert probe(other) == Counter({"t1:1.0"})
            assert probe(bed) == Counter(ALL)
        assert probe(bed) == Counter(ALL)
    finally:
        build.remove(longer)
        state.forget(longer)
    assert bed.up() is False


def test_up__rebuilds_what_a_killed_one_left(bed_name: str) -> None:
    """Method: `up` kills itself when it has the first namespaces and sets up their filters."""
    script = (
        "import os; from mrc.testbed import bed, build; "
        "build.apply_rules = lambda _: os.kill(os.getpid(), 9)"
        f"; bed.Testbed({bed_name!r}, planes=1, t1=1).up()"
    )
    subprocess.run([sys.executable, "-c", script], check=False)
    found = state.load(bed_name)
    assert found is not None and not found.up
    bed = Testbed(bed_name, planes=1, t1=1)
    with pytest.raises(StateError, match="is not up"):
        bed.fail("plane:1")
    assert bed.up() is True
    assert probe(bed) == Counter({"t1:1.0"})
    assert len([name for name in netns.names() if bed_name in name]) == len(bed.plan.nodes)


def test_up__cleans_up_after_a_failure(bed_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "apply_rules", Mock(side_effect=NetlinkError("no")))
    with pytest.raises(NetlinkError, match="no"):
        Testbed(bed_name, planes=1, t1=1).up()
    assert not [name for name in netns.names() if bed_name in name]
    assert state.load(bed_name) is None


def test_up__rebuilds_when_a_namespace_has_gone(bed_name: str) -> None:
    bed = Testbed(bed_name, planes=1, t1=1)
    bed.up()
    netns.remove(bed.plan.nodes["t1-1-0"].namespace)
    assert bed.missing() == ["t1-1-0"]
    assert bed.up() is True
    assert probe(bed) == Counter({"t1:1.0"})


def test_up__two_at_once_build_one(bed_name: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        ups = [pool.submit(Testbed(bed_name, planes=1, t1=1).up) for _ in range(2)]
        assert sorted(up.result() for up in ups) == [False, True]
    assert probe(Testbed.existing(bed_name)) == Counter({"t1:1.0"})


def test_down__removes_what_cannot_be_read(bed_name: str) -> None:
    bed = Testbed(bed_name, planes=1, t1=1)
    bed.up()
    (state.folder(bed_name) / "testbed.json").write_text("{")
    with pytest.raises(ConfigError, match=r"mrc testbed down --name .* removes it"):
        Testbed.existing(bed_name)
    assert bed.down().removed
    assert not state.folder(bed_name).exists()


def test_up__leaves_no_descriptor_open(bed_name: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with Testbed(bed_name, planes=1, t1=1):
        pass
    assert len(os.listdir("/proc/self/fd")) == before


# ---- What users change by hand -------------------------------------------------------------------


PLANE_1 = Counter({"t1:1.0": 1, "t1:1.1": 1})


def by_hand(bed: Testbed, node: str, command: str) -> str:
    """Runs a command in a node by its namespace, as a user of ip netns does."""
    argv = ["ip", "netns", "exec", bed.plan.nodes[node].namespace, "sh", "-ec", command]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def ends(bed: Testbed) -> list[tuple[str, str]]:
    """Ends of the link of h0 in plane 2: node and interface."""
    far = ("t0-2-0", "h0") if bed.shape.fabric is Fabric.KERNEL else ("fabric", "h0-2")
    return [("h0", "p2"), far]


# ---- Ports taken down -----------------------------------------------------------------------


@pytest.mark.parametrize("again", ["", pytest.param("ip link set {} up", marks=pytest.mark.slow)])
@pytest.mark.parametrize("end", [0, 1])
def test_port__taken_down_is_shown_and_heals(
    bed: Testbed, end: int, again: str, capsys: pytest.CaptureFixture[str]
) -> None:
    node, interface = ends(bed)[end]
    by_hand(bed, node, f"ip link set {interface} down\n{again.format(interface)}")
    assert main(["testbed", "status", "--name", bed.name]) == 0
    shown = capsys.readouterr().out.splitlines()
    port = f"{node.replace('t0-2-0', 't0:2.0')}:{interface}"
    if node == "fabric" and again:  # the emulator's ends have no routes to lose
        assert bed.lost() == {} and probe(bed) == Counter(ALL)
        return
    remedy = f"mrc testbed heal link:h0.2 --name {bed.name}"
    assert f"{port} was taken down by hand: {remedy}" in shown
    assert main(["testbed", "status", "--name", bed.name, "--json"]) == 0
    assert printed("testbed status", capsys.readouterr().out)["taken_down"] == [port]
    assert bed.heal("plane:1") == [] and probe(bed, 1, 0) == PLANE_1
    assert main(["testbed", "heal", "link:h0.2", "--name", bed.name]) == 0
    assert capsys.readouterr().out == "healed: link:h0.2; still failing: none\n"
    assert bed.lost() == {} and probe(bed) == Counter(ALL) and probe(bed, 1, 0) == Counter(ALL)


def test_port__held_down_by_a_fault_is_no_other_fault(bed: Testbed) -> None:
    bed.fail("plane:2", Mode.DOWN)
    assert bed.lost() == {}
    by_hand(bed, "h0", "ip link set p2 down")
    assert list(bed.lost()) == ["h0:p2"]
    assert bed.heal("all") == ["plane:2", "link:h0.2"]
    assert probe(bed) == Counter(ALL)


def test_port__of_the_management_network(bed: Testbed) -> None:
    by_hand(bed, "h1", "ip link set mgmt down; ip link set mgmt up")
    assert bed.lost() == {"h1:mgmt": "all"}
    assert bed.heal("all") == ["all"]
    for version in ("-4", "-6"):
        run(bed, "h0", "ping", version, "-c1", f"-W{PATIENCE:g}", "h1.mgmt")


# ---- Settings of the user -------------------------------------------------------------------


def test_heal__leaves_alone_what_no_fault_changed(bed: Testbed) -> None:
    """A user removes a path, limits an MTU and adds a route; then another port fails and heals."""
    path = str(bed.shape.addresses.on_path(1, 1, 1))
    by_hand(bed, "h0", f"ip -6 route del {path} dev p1; ip -6 route add fd77::/64 dev p1")
    by_hand(bed, "h0", "echo 1500 > /proc/sys/net/ipv6/conf/p1/mtu")
    try:
        for target in ("link:h0.2", "plane:2"):
            bed.fail(target, Mode.DOWN)
            bed.heal(target)
        by_hand(bed, "h0", "ip link set p2 down")
        assert bed.heal("all") == ["link:h0.2"]
        shown = by_hand(bed, "h0", "ip -6 route show dev p1")
        assert path not in shown and "fd77::/64" in shown
        assert by_hand(bed, "h0", "cat /proc/sys/net/ipv6/conf/p1/mtu") == "1500\n"
    finally:
        by_hand(bed, "h0", "ip link set p1 down; ip -6 route flush fd77::/64")
        bed.heal("all")
    assert probe(bed) == Counter(ALL)


# ---- Parts removed --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "typed",
    [
        "exec h0 -- true", "shell h0", "rsh h0 true", "fail plane:1", "heal all",
        "capture h0 x.pcap", "run x.toml",
    ],
)  # fmt: skip
def test_part__removed_is_named_with_its_remedy(
    bed_name: str, typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    action, *words = typed.split()
    with Testbed(bed_name, planes=1, t1=1) as bed:
        netns.remove(bed.plan.nodes["t1-1-0"].namespace)
        netns.remove(bed.plan.nodes["h1"].namespace)
        assert main(["testbed", action, "--name", bed_name, *words]) == 1
        assert capsys.readouterr().err == (
            f"mrc testbed {action}: test bed {bed_name} lacks h1, t1:1.0:"
            f" rebuild it with the same mrc testbed up --name {bed_name}\n"
        )
        assert bed.up() and probe(bed) == Counter({"t1:1.0"})


def test_interface__that_was_removed_is_named(bed_name: str) -> None:
    with Testbed(bed_name, planes=1, t1=1) as bed:
        by_hand(bed, "h0", "ip link del p1")
        assert set(bed.lost()) == {"h0:p1", "t0:1.0:h0"}
        with pytest.raises(StateError, match=f"h0:p1 was removed: .* down --name {bed_name}"):
            bed.heal("all")


@pytest.mark.default
def test_status__names_what_is_gone(bed_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Testbed(bed_name, planes=1, t1=1) as bed:
        netns.remove(bed.plan.nodes["t1-1-0"].namespace)
        assert main(["testbed", "status", "--name", bed_name]) == 0
    assert f"missing: t1:1.0; rebuild with the same mrc testbed up --name {bed_name}" in (
        capsys.readouterr().out
    )
