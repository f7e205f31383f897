# SPDX-License-Identifier: Apache-2.0
"""What users change in a test bed by hand: ports taken down, parts removed, settings of their own.

h0 -- t0:P.0 --+-- t1:P.0 --+-- t0:P.1 -- h1        P = 1, 2
               +-- t1:P.1 --+
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator

import pytest
from printed import printed
from slowness import PATIENCE

from mrc.cli.main import main
from mrc.errors import StateError
from mrc.linux import netns
from mrc.testbed import build, state
from mrc.testbed.bed import Testbed
from mrc.testbed.faults import Mode
from mrc.testbed.shape import Fabric

from .conftest import fresh_name, probe

ALL = Counter({"t1:1.0": 1, "t1:1.1": 1, "t1:2.0": 1, "t1:2.1": 1})
PLANE_1 = Counter({"t1:1.0": 1, "t1:1.1": 1})


@pytest.fixture(scope="module", params=[*Fabric])
def bed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    with Testbed(fresh_name(), planes=2, t1=2, rate="1gbit", fabric=request.param) as bed:
        yield bed


@pytest.fixture(autouse=True)
def always_healed(healed: None) -> None:
    pass


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
        assert bed.lost() == {} and probe(bed) == ALL
        return
    remedy = f"mrc testbed heal link:h0.2 --name {bed.name}"
    assert f"{port} was taken down by hand: {remedy}" in shown
    assert main(["testbed", "status", "--name", bed.name, "--json"]) == 0
    assert printed("testbed status", capsys.readouterr().out)["taken_down"] == [port]
    assert bed.heal("plane:1") == [] and probe(bed, 1, 0) == PLANE_1
    assert main(["testbed", "heal", "link:h0.2", "--name", bed.name]) == 0
    assert capsys.readouterr().out == "healed: link:h0.2; still failing: none\n"
    assert bed.lost() == {} and probe(bed) == ALL and probe(bed, 1, 0) == ALL


def test_port__held_down_by_a_fault_is_no_other_fault(bed: Testbed) -> None:
    bed.fail("plane:2", Mode.DOWN)
    assert bed.lost() == {}
    by_hand(bed, "h0", "ip link set p2 down")
    assert list(bed.lost()) == ["h0:p2"]
    assert bed.heal("all") == ["plane:2", "link:h0.2"]
    assert probe(bed) == ALL


def test_port__of_the_management_network(bed: Testbed) -> None:
    by_hand(bed, "h1", "ip link set mgmt down; ip link set mgmt up")
    assert bed.lost() == {"h1:mgmt": "all"}
    assert bed.heal("all") == ["all"]
    for version in ("-4", "-6"):
        ping = ["ping", version, "-c1", f"-W{PATIENCE:g}", "h1.mgmt"]
        argv, environment = bed.host_command("h0", ping)
        subprocess.run(argv, env=environment, check=True, capture_output=True)


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
    assert probe(bed) == ALL


# ---- Parts removed --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("exec", "h0", "--", "true"),
        ("shell", "h0"),
        ("rsh", "h0", "true"),
        ("fail", "plane:1"),
        ("heal", "all"),
        ("capture", "h0", "x.pcap"),
        ("run", "x.toml"),
    ],
)
def test_part__removed_is_named_with_its_remedy(
    bed_name: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with Testbed(bed_name, planes=1, t1=1) as bed:
        netns.remove(bed.plan.nodes["t1-1-0"].namespace)
        netns.remove(bed.plan.nodes["h1"].namespace)
        assert main(["testbed", words[0], "--name", bed_name, *words[1:]]) == 1
        assert capsys.readouterr().err == (
            f"mrc testbed {words[0]}: test bed {bed_name} lacks h1, t1:1.0:"
            f" rebuild it with the same mrc testbed up --name {bed_name}\n"
        )
        assert bed.up() and probe(bed) == Counter({"t1:1.0"})


def test_emulator__that_ended_is_named(bed_name: str) -> None:
    with Testbed(bed_name, planes=1, t1=1, fabric="emulated") as bed:
        (state.folder(bed_name) / "fabric.sock").unlink()
        with pytest.raises(StateError, match="lacks fabric: rebuild"):
            bed.fail("plane:1")
        build.remove(bed_name)  # its namespace: the emulator cannot be asked to end


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
