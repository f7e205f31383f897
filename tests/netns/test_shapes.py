# SPDX-License-Identifier: Apache-2.0
"""Test beds with shapes other than the default, in both fabrics.

h0 -+- t0:P.0 --+-- t1:P.0 --+-- t0:P.1 -+- h2        P = 1, 2
h1 -+           +-- t1:P.1 --+           +- h3
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from slowness import PATIENCE

from mrc.cli.main import main
from mrc.errors import NetlinkError
from mrc.fabric.topology import Addresses
from mrc.lab.export import with_link_addresses
from mrc.linux import netns
from mrc.testbed import state
from mrc.testbed.bed import Testbed
from mrc.testbed.faults import Mode
from mrc.testbed.shape import Fabric

from .conftest import PORT, arrivals, check_fault, fresh_name, probe, udp_socket

pytestmark = pytest.mark.usefixtures("healed")

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
}


@pytest.fixture(scope="module", params=[*Fabric])
def bed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    with Testbed(
        fresh_name(), hosts=4, planes=2, t0=2, t1=2, rate="1gbit", fabric=request.param
    ) as bed:
        yield bed


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


@pytest.mark.parametrize("mode", [*Mode])
@pytest.mark.parametrize("target", FAULTS)
def test_fail__kills_its_paths_and_no_others(bed: Testbed, target: str, mode: Mode) -> None:
    near, far, back = FAULTS[target]
    check_fault(bed, target, mode, (0, 1, NEAR, near), (0, 2, FAR, far), (3, 1, FAR, back))


def test_fail__loses_a_share_once_below_one_t0(bed: Testbed) -> None:
    """Half of 200 datagrams: 100 +- 43 is six sigma; if both hops lost half, 50 would arrive."""
    bed.fail("t0:1.0", loss=0.5)
    assert 57 <= arrivals(bed, 200, {"t0:2.0"})["t0:1.0"] <= 143


def test_transfer__between_hosts_below_one_t0(bed: Testbed, tmp_path: Path) -> None:
    """One path per plane; one of the paths is silent."""
    inbox, file = tmp_path / "inbox", tmp_path / "file"
    inbox.mkdir()
    file.write_bytes(os.urandom(1 << 20))
    bed.fail("t0:2.0")
    mrc = [sys.executable, "-m", "mrc"]
    argv, env = bed.host_command("h1", [*mrc, "recv", "--output", str(inbox)])
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE) as receiving:
        try:
            assert receiving.stderr is not None
            assert b"listening" in receiving.stderr.readline()
            argv, env = bed.host_command("h0", [*mrc, "send", str(file), "h1"])
            subprocess.run(argv, env=env, check=True, timeout=PATIENCE)
        finally:
            receiving.terminate()
    assert (inbox / "file").read_bytes() == file.read_bytes()


def run(bed: Testbed, *command: str) -> str:
    argv, env = bed.host_command("h0", command)
    return subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout


def one_way_s(bed: Testbed) -> float:
    """Seconds that a datagram takes from h0 to h1."""
    with udp_socket(bed, "h1") as rx, udp_socket(bed, "h0") as tx:
        rx.bind(("::", PORT))
        rx.settimeout(PATIENCE)
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
    assert f"inet6 {addresses.oob(0)}" in run(from_file, "ip", "-6", "address")
    # 80 KiB of the 210 kB pass a tbf in one burst; the rest takes 0.5 s.
    assert seconds(from_file, 2, 150) > 0.4


def seconds(bed: Testbed, plane: int, count: int) -> float:
    """Seconds that `count` packets take from h0 to h2. Receives each packet at once, because the
    receiver's buffer holds only about 90.
    """
    (dst,) = [str(path.dst) for path in bed.shape.paths(0, 2) if path.plane == plane]
    with udp_socket(bed, "h2") as rx, udp_socket(bed, "h0") as tx:
        rx.bind(("::", PORT))
        left = count
        began = time.monotonic()
        for _ in range(count):
            tx.sendto(bytes(1300), (dst, PORT))
            rx.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while rx.recv(2000):
                    left -= 1
        rx.settimeout(PATIENCE)
        for _ in range(left):
            rx.recv(2000)
        return time.monotonic() - began


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
    with udp_socket(bed, "h1") as rx, udp_socket(bed, "h0") as tx:
        rx.bind(("::", PORT))
        rx.settimeout(PATIENCE)
        for size in (2000, 4000, 4000, 4000, 2000):
            tx.sendto(bytes(size), (dst, PORT))
        assert [len(rx.recv(9000)) for _ in range(2)] == [2000, 2000]
    lost = {hop: found.lost for hop, found in bed.measure(0).items() if found.lost}
    assert lost == {"t1:1.0>t0:1.1": 3}


@pytest.mark.parametrize("fabric", [*Fabric])
def test_down__leaves_nothing_of_an_up_that_was_killed(fabric: Fabric, bed_name: str) -> None:
    """Method: kills `up` of a built-in topology as soon as the first namespaces exist."""
    mrc = [sys.executable, "-m", "mrc", "testbed", "--name", bed_name]
    with subprocess.Popen([*mrc, "up", "sixteen", "--fabric", fabric]) as process:
        while not [name for name in netns.names() if bed_name in name]:
            assert process.poll() is None
            os.sched_yield()
        process.kill()
    assert main(["testbed", "down", "--name", bed_name]) == 0
    assert not [name for name in netns.names() if bed_name in name]
    assert not state.folder(bed_name).exists()


def test_link_addresses__carry_the_same_paths(
    bed_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The addresses and routes that real switches get, in the kernel: every path arrives."""
    bed = Testbed(bed_name, hosts=4, planes=2, t0=2, t1=2, rate="1gbit")
    monkeypatch.setitem(vars(bed), "plan", with_link_addresses(bed.plan))
    with bed:
        for src, dst, expected in ((0, 1, NEAR), (0, 3, FAR), (3, 1, FAR)):
            assert set(probe(bed, src, dst, each=2)) == expected
