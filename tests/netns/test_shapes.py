# SPDX-License-Identifier: Apache-2.0
"""Test beds of other shapes than the usual one, in both fabrics.

h0 -+- t0:P.0 --+-- t1:P.0 --+-- t0:P.1 -+- h2        P = 1, 2
h1 -+           +-- t1:P.1 --+           +- h3
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from mrc import netns
from mrc.errors import NetlinkError
from mrc.testbed import Fabric, Mode, Testbed
from mrc.topology import Addresses

from .conftest import fresh_name, probe

pytestmark = pytest.mark.usefixtures("healed")

NEAR = {"t0:1.0", "t0:2.0"}
FAR = {"t1:1.0", "t1:1.1", "t1:2.0", "t1:2.1"}

# What dies of a fault: from h0 to h1, from h0 to h2, from h3 to h1.
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


def test_paths__below_one_t0_and_over_every_t1(bed: Testbed) -> None:
    for src, dst, expected in ((0, 1, NEAR), (1, 0, NEAR), (0, 3, FAR), (3, 1, FAR)):
        assert probe(bed, src, dst) == Counter(expected)


@pytest.mark.parametrize("mode", [*Mode])
@pytest.mark.parametrize("target", FAULTS)
def test_fail__kills_its_paths_and_no_others(bed: Testbed, target: str, mode: Mode) -> None:
    bed.fail(target, mode)
    for (src, dst), dead in zip(((0, 1), (0, 2), (3, 1)), FAULTS[target], strict=True):
        expected = NEAR if (src, dst) == (0, 1) else FAR
        assert probe(bed, src, dst) == Counter(expected - dead)
    bed.heal(target)
    assert probe(bed, 0, 1) == Counter(NEAR)
    assert probe(bed, 3, 1) == Counter(FAR)


def test_fail__loses_a_share_once_below_one_t0(bed: Testbed) -> None:
    """Half of 200 datagrams: 100 +- 43 is six sigma; tossed twice it would be 50."""
    bed.fail("t0:1.0", loss=0.5)
    assert 57 <= probe(bed, 0, 1, each=200)["t0:1.0"] <= 143


def test_transfer__between_hosts_below_one_t0(bed: Testbed, tmp_path: Path) -> None:
    """One path a plane; one of them falls silent."""
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
            subprocess.run(argv, env=env, check=True, timeout=60)
        finally:
            receiving.terminate()
    assert (inbox / "file").read_bytes() == file.read_bytes()


def run(bed: Testbed, *command: str) -> str:
    argv, env = bed.host_command("h0", command)
    return subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout


def has_netem(namespace: str) -> bool:
    argv = ["ip", "netns", "exec", namespace, *["tc", "qdisc", "add", "dev", "lo", "root", "netem"]]
    return subprocess.run(argv, check=False, capture_output=True).returncode == 0


def test_up__delays_or_says_what_the_kernel_lacks(
    bed_name: str, namespace_pair: tuple[str, str]
) -> None:
    """Goal: a delay that was asked for is there, or nothing is."""
    delayed = Testbed(bed_name, planes=1, t1=1, delay_ns=5_000_000)
    if has_netem(namespace_pair[0]):
        delayed.up()
        ping = run(delayed, "ping", "-c", "1", "-q", str(Addresses().on_path(1, 1, 0)))
        assert float(ping.split("/")[4]) >= 2 * 4 * 5
    else:
        with pytest.raises(NetlinkError, match="CONFIG_NET_SCH_NETEM, or --fabric emulated"):
            delayed.up()
        assert not [name for name in netns.names() if bed_name in name]
