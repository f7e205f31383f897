# SPDX-License-Identifier: Apache-2.0
"""Test beds joined to the world. Namespaces stand for the machine, the world behind its uplink, and
another network; and for a virtual machine at the other ends of interfaces, which is a real host:

 hosts --- mgmt --- machine eth0 192.0.2.2 --- 192.0.2.1 world   203.0.113.1 on its lo
                    eth1 198.51.100.2 --- 198.51.100.1 lan
 h0 --- the fabric --- machine tap0 tap1 tap2 --- ens0 ens1 ens2 vm
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from netns.conftest import fresh_name
from netns.liar import answer
from netns.plain import address, ip, join, namespaces, until_running
from netns.processes import Hosts, Mrc, run
from printed import printed
from slowness import PATIENCE, until

from mrc.cli.main import main
from mrc.errors import StateError
from mrc.lab import uplink as uplinks
from mrc.linux import netns
from mrc.linux.rtnetlink import Interface
from mrc.testbed.bed import Testbed
from mrc.testbed.shape import Fabric

FAR, FAR6 = "203.0.113.1", "2001:db8:3::1"
PAGE = "203.0.113.80"
SYSCTLS = (
    "net/ipv4/conf/eth0/forwarding", "net/ipv6/conf/all/forwarding", "net/ipv6/conf/eth0/accept_ra",
)  # fmt: skip


class Around(NamedTuple):
    """The namespaces around a test bed."""

    machine: str
    world: str
    lan: str
    vm: str

    def run(self, *words: str) -> int:
        """`mrc testbed`, as typed on the machine."""
        with netns.inside(self.machine):
            return main(["testbed", *words])

    def up(self, name: str, *words: str) -> int:
        """A small test bed."""
        return self.run("up", "--planes", "1", "--t1", "1", "--name", name, *words)

    def sysctls(self) -> list[str]:
        with netns.inside(self.machine):
            return [Path("/proc/sys", key).read_text().strip() for key in SYSCTLS]

    def interfaces(self) -> dict[str, Interface]:
        return {each.name: each for each in Interface.all(self.machine)}

    def tables(self) -> str:
        with netns.inside(self.machine):
            return subprocess.check_output(["nft", "list", "tables"], text=True)


@pytest.fixture
def around() -> Iterator[Around]:
    name = fresh_name()
    made = Around(*(f"mrc-{name}.{each}" for each in ("machine", "world", "lan", "vm")))
    with namespaces(*made):
        join(made.machine, "eth0", made.world, "w0")
        join(made.machine, "eth1", made.lan, "l0", mtu=1400)
        address(made.machine, "eth0", "192.0.2.2/24", "2001:db8:1::2/64")
        address(made.world, "w0", "192.0.2.1/24", "2001:db8:1::1/64")
        address(made.world, "lo", f"{FAR}/32", f"{FAR6}/128", f"{PAGE}/32")
        address(made.machine, "eth1", "198.51.100.2/24", "2001:db8:2::2/64")
        address(made.lan, "l0", "198.51.100.1/24", "2001:db8:2::1/64")
        for where, gateway in ((made.machine, "192.0.2.1"), (made.machine, "2001:db8:1::1")):
            ip(f"-n {where} route add default via {gateway}")
        ip(f"-n {made.lan} route add default via 2001:db8:2::2")
        until_running(made.machine, "eth0", "eth1")
        yield made


@pytest.fixture
def names(around: Around) -> Iterator[list[str]]:
    """Names of two test beds, which are removed before the machine is."""
    found = [fresh_name(), fresh_name()]
    yield found
    for each in found:
        around.run("down", "--name", each)


def reaches(bed: Testbed, where: str, host: str = "h0") -> bool:
    argv, env = bed.host_command(host, ["ping", "-c1", f"-W{PATIENCE:g}", where])
    return subprocess.run(argv, env=env, stdout=subprocess.DEVNULL, check=False).returncode == 0


def reached_from(namespace: str, where: str, *, seconds: float = 1) -> bool:
    """Whether a ping is answered, or refused by silence for so long."""
    with netns.inside(namespace):
        argv = ["ping", "-c1", f"-W{seconds:g}", where]
        return subprocess.run(argv, stdout=subprocess.DEVNULL, check=False).returncode == 0


# ---- An uplink -------------------------------------------------------------------------------


@pytest.mark.parametrize("fabric", [*Fabric])
def test_uplink__hosts_reach_the_world(around: Around, names: list[str], fabric: Fabric) -> None:
    """By both IP versions. The machine then forwards nothing else, and `down` leaves no trace."""
    before = around.sysctls(), around.tables()
    assert not reached_from(around.lan, FAR6)
    assert around.up(names[0], "--fabric", fabric, "--uplink", "eth0") == 0
    bed = Testbed.existing(names[0])
    assert reaches(bed, FAR) and reaches(bed, FAR6) and reaches(bed, "h1.p1")
    assert not reached_from(around.lan, FAR6)
    assert around.run("down", "--name", names[0]) == 0
    assert (around.sysctls(), around.tables()) == before
    assert set(around.interfaces()) == {"lo", "eth0", "eth1"}
    assert not [each for each in netns.names() if names[0] in each]


def test_uplink__of_two_test_beds(around: Around, names: list[str]) -> None:
    """The machine forwards until the last one is gone. Both have the same addresses inside."""
    before = around.sysctls(), around.tables()
    for name in names:
        assert around.up(name, "--uplink", "eth0") == 0
    beds = [Testbed.existing(name) for name in names]
    assert all(reaches(bed, FAR) for bed in beds)
    around.run("down", "--name", names[0])
    assert reaches(beds[1], FAR6) and not reached_from(around.lan, FAR6)
    around.run("down", "--name", names[1])
    assert (around.sysctls(), around.tables()) == before


def test_uplink__another_one_leaves_the_guards_of_the_first(
    around: Around, names: list[str]
) -> None:
    before = around.sysctls(), around.tables()
    for name, uplink in zip(names, ("eth0", "eth1"), strict=True):
        assert around.up(name, "--uplink", uplink) == 0
    assert reaches(Testbed.existing(names[1]), "198.51.100.1")
    assert not reached_from(around.lan, FAR6)
    for name in names:
        around.run("down", "--name", name)
    assert (around.sysctls(), around.tables()) == before


@pytest.mark.default
def test_uplink__returns_after_a_link_was_down(around: Around, names: list[str]) -> None:
    assert around.up(names[0], "--uplink", "eth0") == 0
    bed = Testbed.existing(names[0])
    for state in ("down", "up"):
        ip(f"-n {bed.plan.nodes['h0'].namespace} link set mgmt {state}")
    bed.heal("all")
    assert reaches(bed, FAR) and reaches(bed, FAR6)


@contextmanager
def answering_names(namespace: str) -> Iterator[None]:
    """A name server in the world that has one address for all names."""
    with netns.inside(namespace):
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        last = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((FAR, 53))

    def serve() -> None:
        while (asked := server.recvfrom(512))[0]:
            server.sendto(answer(asked[0], [PAGE]), asked[1])

    thread = threading.Thread(target=serve)
    thread.start()
    with server, last:
        try:
            yield
        finally:
            last.sendto(b"", (FAR, 53))
            thread.join(PATIENCE)


def test_uplink__names_resolve(
    around: Around, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the servers behind the machine's own resolver, which hosts cannot reach."""
    near, far = tmp_path / "near", tmp_path / "far"
    near.write_text("nameserver 127.0.0.53\n")
    far.write_text(f"nameserver 127.0.0.1\nnameserver {FAR}\n")
    monkeypatch.setattr(uplinks, "RESOLVERS", (str(near), str(far)))
    assert around.up(names[0], "--uplink", "eth0") == 0
    with answering_names(around.world):
        found = run(Testbed.existing(names[0]), "h0", "getent", "ahostsv4", "page.example")
    assert found.startswith(PAGE)


def test_uplink__refusals(
    around: Around, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ip(f"-n {around.machine} addr flush dev eth1 scope global")
    for interface, said in (
        ("eth7", "this machine has no interface eth7; it has eth0, eth1"),
        ("eth1", "uplink eth1 is down or has no address"),
    ):
        assert around.run("up", "--name", names[0], "--uplink", interface) == 1
        assert said in capsys.readouterr().err
    assert not [each for each in netns.names() if names[0] in each]


# ---- An interface that leads to a real host ----------------------------------------------------


def shown(around: Around, interface: str = "eth1") -> tuple[object, ...]:
    found = around.interfaces()[interface]
    return found.enabled, found.mtu, {each for each in found.addresses if not each.is_link_local}


def test_interface__returns_also_without_the_name_of_the_machine(
    around: Around, names: list[str]
) -> None:
    """Also when somebody removed the name of the namespace that it came from, where it was down,
    with another MTU.
    """
    ip(f"-n {around.machine} link set eth1 down")
    before = shown(around)
    assert around.up(names[0], "--real-host", "h1=eth1") == 0
    netns.remove(f"mrc-{names[0]}-machine")
    assert around.run("down", "--name", names[0]) == 0
    assert shown(around) == before


def test_interface__returns_after_up_was_killed(around: Around, names: list[str]) -> None:
    """Method: kills `up` as soon as the interface is gone."""
    before = shown(around)
    words = ["up", "--planes", "1", "--name", names[0], "--real-host", "h1=eth1"]
    with netns.inside(around.machine):
        process = subprocess.Popen([sys.executable, "-m", "mrc", "testbed", *words])
    with process:
        runs = True
        while "eth1" in around.interfaces():
            assert runs
            runs = process.poll() is None  # before the next look: it may end in between
        process.kill()
    assert around.run("down", "--name", names[0]) == 0
    assert shown(around) == before
    assert not [each for each in netns.names() if names[0] in each]


def test_interface__cannot_return_to_a_name_that_is_taken(around: Around, names: list[str]) -> None:
    before = shown(around)
    assert around.up(names[0], "--real-host", "h1=eth1") == 0
    ip(f"-n {around.machine} link add eth1 type bridge")
    with pytest.raises(StateError, match="eth1 cannot return, because"):
        Testbed.existing(names[0]).down()
    ip(f"-n {around.machine} link del eth1")
    assert around.run("down", "--name", names[0]) == 0
    assert shown(around) == before


def test_interface__with_the_default_route_stays(
    around: Around, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = shown(around, "eth0")
    assert around.up(names[0], "--real-host", "h1=eth0") == 1
    assert "eth0 has the default route" in capsys.readouterr().err
    assert shown(around, "eth0") == before
    assert uplinks.load_record(names[0]) == uplinks.Record()


def test_give_back__of_an_interface_that_is_gone(around: Around, names: list[str]) -> None:
    assert around.up(names[0], "--real-host", "h1=eth1") == 0
    ip(f"-n {around.lan} link del l0")  # both ends go
    until(lambda: "eth1" not in around.interfaces())
    assert around.run("down", "--name", names[0]) == 0
    assert not [each for each in netns.names() if names[0] in each]


# ---- A real host ---------------------------------------------------------------------------------


class RealHost(NamedTuple):
    """h1 of a test bed: the virtual machine."""

    up: list[str]
    own: list[str]
    """options of `join`"""


@pytest.fixture(params=[*Fabric])
def real(request: pytest.FixtureRequest, around: Around, names: list[str]) -> RealHost:
    """With a management network in a kernel fabric, and without in an emulated one."""
    for number in range(3):
        join(around.machine, f"tap{number}", around.vm, f"ens{number}", mtu=9000)
    managed = request.param is Fabric.KERNEL
    up = ["up", "--planes", "2", "--t1", "1", "--rate", "200mbit", "--fabric", request.param]
    up += ["--name", names[0], "--real-host", "h1=tap1,tap2" + ",mgmt:tap0" * managed]
    return RealHost(up, ["--interfaces", "ens1,ens2", *["--management", "ens0"] * managed])


def carriers(around: Around) -> list[bool]:
    return [each.up for each in Interface.all(around.vm) if each.name in ("ens1", "ens2")]


def until_sends_on(planes: set[int], events: Iterator[dict[str, Any]]) -> None:
    """Waits for an interval in which `mrc perf` sends over these planes only, and all of them."""
    for event in (each for each in events if each["event"] == "interval"):
        sent = {each["plane"] for each in event["planes"] if each["sent_bytes"]}
        if sent == planes and event["written_bytes"]:
            return
    raise AssertionError(f"it ended before it sent over planes {planes} only")


@pytest.mark.default
def test_real_host__over_all_planes(
    around: Around, names: list[str], real: RealHost, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """`mrc perf` from h0, while one plane is silent, then the link of another is down."""
    assert around.run(*real.up) == 0
    capsys.readouterr()
    assert around.run("join", "h1", *real.own, "--name", names[0], "--json") == 0
    script = printed("testbed join", capsys.readouterr().out)["script"]
    with netns.inside(around.vm):
        there = script.replace("/run/mrc-", f"{tmp_path}/mrc-")
        subprocess.run(["sh"], input=there, text=True, check=True)
    bed = Testbed.existing(names[0])
    with Hosts(bed) as hosts:
        server = ["ip", "netns", "exec", around.vm, sys.executable, "-m", "mrc", "perf", "--server"]
        config = {"MRC_CONFIG": str(tmp_path / f"mrc-{names[0]}-h1" / "mrc.toml")}
        hosts.running.append(Mrc.begin(server, os.environ | config))
        hosts.running[0].until_listening()
        client = hosts.start("h0", "perf", "h1", "-t", "300", "-i", "0.1", "--json-stream")
        assert client.process.stdout is not None
        events = map(json.loads, client.process.stdout)
        until_sends_on({1, 2}, events)
        counted = bed.links()
        assert counted["h0>t0:1.0"]["packets"] and counted["h1>t0:2.1"]["packets"]
        bed.fail("plane:1")
        until_sends_on({2}, events)
        bed.heal()
        until_sends_on({1, 2}, events)
        bed.fail("link:h1.2", "down")
        until(lambda: carriers(around) == [True, False])
        until_sends_on({1}, events)
        bed.heal()
        until(lambda: carriers(around) == [True, True])
        until_sends_on({1, 2}, events)


def test_real_host__as_any_other(
    around: Around, names: list[str], real: RealHost, capsys: pytest.CaptureFixture[str]
) -> None:
    """But it runs its own programs, and `down` returns its interfaces."""
    assert around.run(*real.up) == 0
    for words, said in (
        (("exec", "h1", "--", "true"), "h1 is a real host, so run its programs there"),
        (("drain", "plane:2"), "h1 is a real host: its routes"),
        (("join", "h0"), "h0 is no real host of this test bed: h1"),
        (("join", "h1", "--interfaces", "a,b,c"), "h1 has 2 planes, not 3"),
    ):
        capsys.readouterr()
        assert around.run(words[0], "--name", names[0], *words[1:]) == 2
        assert said in capsys.readouterr().err
    assert around.run("status", "--name", names[0], "--json") == 0
    (host,) = printed("testbed status", capsys.readouterr().out)["outside"]["hosts"]
    assert (host["host"], host["interfaces"]) == ("h1", ["tap1", "tap2"])
    assert around.run("down", "--name", names[0]) == 0
    found = {name: each.mtu for name, each in around.interfaces().items() if each.up}
    assert found == {
        "lo": 65536, "eth0": 1500, "eth1": 1400, "tap0": 9000, "tap1": 9000, "tap2": 9000,
    }  # fmt: skip
