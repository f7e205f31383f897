# SPDX-License-Identifier: Apache-2.0
"""The judge on one host, the device on another one.

judge -- v1 ---- w1 -- device        10.1.0.1, 10.1.0.2
      -- v2 ---- w2 --               10.2.0.1, 10.2.0.2
"""

from __future__ import annotations

from netns.plain import address, join, until_running
from netns.processes import Start
from printed import printed


def test_run__over_two_planes(namespace_pair: tuple[str, str], start: Start) -> None:
    judge, device = namespace_pair
    for n in (1, 2):
        join(judge, f"v{n}", device, f"w{n}")
        address(judge, f"v{n}", f"10.{n}.0.1/24")
        address(device, f"w{n}", f"10.{n}.0.2/24")
    until_running(judge, "v1", "v2")
    until_running(device, "w1", "w2")
    start(device, "conform", "device", "-B", "w1", "-B", "w2", "--listen").until_says("waiting for")
    addresses = ("--address", "10.1.0.1", "--address", "10.2.0.1")
    told = start(judge, "conform", "run", "10.1.0.2", *addresses, "--json").ends(0)
    assert [
        (each["name"], each["reason"])
        for each in printed("conform run", told)["cases"]
        if each["verdict"] != "passed"
    ] == []
