# SPDX-License-Identifier: Apache-2.0
"""The judge on one host, the device on another one.

judge -- v1 ---- w1 -- device        10.1.0.1, 10.1.0.2
      -- v2 ---- w2 --               10.2.0.1, 10.2.0.2

Captures of test beds whose paths need segment routing headers.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from netns.plain import address, join, until_running
from netns.processes import Hosts, Mrc, Start
from printed import printed

from mrc.dissect.capture import read
from mrc.testbed.bed import Testbed
from mrc.testbed.shape import Fabric
from mrc.testbed.topology import Addresses

IPV6_NEXT_AT, ROUTING = 14 + 6, 43  # in the outer header of an Ethernet frame
PACKETS = 600  # fewer than 8 MiB need


@pytest.mark.default
@pytest.mark.parametrize(
    "patterns",
    [("access", "headers", "planes"), pytest.param(("*",), marks=pytest.mark.slow)],
)  # unit/conform plays all cases on loopback
def test_run__over_two_planes(
    namespace_pair: tuple[str, str], start: Start, patterns: tuple[str, ...]
) -> None:
    judge, device = namespace_pair
    for n in (1, 2):
        join(judge, f"v{n}", device, f"w{n}")
        address(judge, f"v{n}", f"10.{n}.0.1/24")
        address(device, f"w{n}", f"10.{n}.0.2/24")
    until_running(judge, "v1", "v2")
    until_running(device, "w1", "w2")
    start(device, "conform", "device", "-B", "w1", "-B", "w2", "--listen").until_says("waiting for")
    addresses = ("--address", "10.1.0.1", "--address", "10.2.0.1")
    words = [word for pattern in patterns for word in ("--case", pattern)]
    run = ("conform", "run", "10.1.0.2", *addresses, *words, "--wait", "60", "--json")
    played = printed("conform run", start(judge, *run).ends(0))["cases"]
    assert len(played) > 10
    wrong = [(each["name"], each["reason"]) for each in played if each["verdict"] != "passed"]
    assert [each for each in wrong if "this host is too busy" not in each[1]] == []


TWO_TIERS = {"planes": 2, "t1": 2}
THREE_TIERS = {"planes": 2, "t0": 2, "t1": 2, "pods": 2, "t2": 2}


@pytest.mark.parametrize(
    ("carrier_usids", "fabric", "shape"),
    [
        (2, Fabric.KERNEL, TWO_TIERS),
        pytest.param(1, Fabric.KERNEL, TWO_TIERS, marks=pytest.mark.slow),
        pytest.param(1, Fabric.EMULATED, TWO_TIERS, marks=pytest.mark.slow),
        pytest.param(3, Fabric.KERNEL, THREE_TIERS, marks=pytest.mark.slow),
        (3, Fabric.EMULATED, THREE_TIERS),
    ],
)
def test_judge__paths_with_segment_routing_headers(
    bed_name: str, tmp_path: Path, carrier_usids: int, fabric: Fabric, shape: dict[str, Any]
) -> None:
    """Each path has three uSIDs, or five: switches and hosts take the next carrier from the SRH."""
    file = tmp_path / "a.pcap"
    addresses = Addresses(carrier_usids=carrier_usids)
    with (
        Testbed(bed_name, addresses=addresses, fabric=fabric, **shape) as bed,
        Hosts(bed) as hosts,
    ):
        # At the sender: to the receiver a retransmission may come after the SACK that it has met.
        words = ("testbed", "--name", bed.name, "capture", "h0", file, "--count", str(PACKETS))
        command = [sys.executable, "-m", "mrc", *map(str, words)]
        capturing = Mrc.begin(command)
        hosts.running.append(capturing)
        capturing.until_says("h0")
        hosts.start("h1", "perf", "--server").until_listening()
        told = hosts.start("h0", "perf", "h1", "-n", "8MiB", "--json").ends(0)
        capturing.ends(0)
    assert printed("perf", told)["results"][0]["server"]["received_bytes"] == 8 << 20
    with file.open("rb") as captured:
        frames = list(read(captured, str(file)))
    assert sum(frame.data[IPV6_NEXT_AT] == ROUTING for frame in frames) > PACKETS / 2
    command = [sys.executable, "-m", "mrc", "conform", "judge", "--json", str(file)]
    judged = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ways = printed("conform judge", judged)["directions"]
    most = max(ways, key=lambda way: way["packets"])
    assert most["packets"] > PACKETS / 2 and most["evs"] == 4
    assert [way["broken"] for way in ways if way["broken"]] == []
