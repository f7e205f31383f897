# SPDX-License-Identifier: Apache-2.0
"""`mrc doctor` on this machine, which supports test beds, since these tests run."""

from __future__ import annotations

from mrc.doctor import host, kernel
from mrc.linux import netns
from mrc.results.doctor import State


def test_doctor__finds_what_these_tests_use() -> None:
    found = {each.name: each.state for each in host.examine()}
    for name in ("point to point", "veth", "seg6", "uSIDs", "packet ring", "tbf", "nftables"):
        assert found[name] is State.OK, found
    assert {kernel.NEAR, kernel.FAR}.isdisjoint(netns.names())


def test_probe__tries_everything_that_doctor_explains() -> None:
    assert set(kernel.examine()) == set(host._NEEDS)
