# SPDX-License-Identifier: Apache-2.0
"""Lines about what the proof of the paths found."""

from __future__ import annotations

from mrc.connect.proof import plane_limits, plane_names, silent_paths, smaller_packets

NICS = {1: "eth1", 2: "eth2", 3: "eth3"}


def test_smaller_packets__nothing_to_tell() -> None:
    same = {1: 8908, 2: 8908}
    assert smaller_packets("h1", 8908, same, same, NICS) == ""
    allowed = {1: 1408, 2: 1388}
    found = {1: 1388, 2: 1388}
    assert smaller_packets("h1", 1388, allowed, found, NICS) == "", "IPv4 and IPv6"


def test_smaller_packets__one_plane_slows_down_the_others() -> None:
    allowed = {1: 8908, 2: 8908, 3: 8908}
    line = smaller_packets("h1", 1308, allowed, {1: 8908, 2: 1308, 3: 8908}, NICS)
    assert line == (
        "plane 2 (eth2) to h1 carries only 1308 bytes in a packet, other planes 8908: all planes"
        " use 1308, which costs 6% of the rate and 6.8 times as many packets; raise its MTU, or"
        " leave it out: -B eth1 -B eth3"
    )


def test_smaller_packets__what_a_small_difference_costs() -> None:
    allowed = {1: 1428, 2: 1428}
    line = smaller_packets("h1", 1376, allowed, {1: 1428, 2: 1376}, NICS)
    assert "all planes use 1376, which costs 4% more packets; raise" in line
    line = smaller_packets("h1", 1124, allowed, {1: 1428, 2: 1124}, NICS)
    assert "which costs 2% of the rate and 27% more packets; raise" in line


def test_smaller_packets__an_interface_has_a_smaller_mtu() -> None:
    """The probes have the size that every interface allows, and all of them were answered."""
    line = smaller_packets("h1", 1408, {1: 8908, 2: 1408}, {1: 1408, 2: 1408}, NICS)
    assert line.startswith("plane 2 (eth2) to h1 carries only 1408 bytes in a packet, other planes")
    assert line.endswith("leave it out: -B eth1")


def test_smaller_packets__all_planes() -> None:
    line = smaller_packets("h1", 1308, {1: 1408, 2: 1408}, {1: 1308, 2: 1308}, NICS)
    assert line == (
        "packets to h1 carry 1308 bytes, not 1408: on every plane a link on the way has a smaller"
        " MTU"
    )


def test_smaller_packets__only_the_peer_noticed() -> None:
    line = smaller_packets("h1", 1308, {1: 1408}, {1: 1408}, NICS)
    assert line.startswith("packets to h1 carry 1308 bytes, not 1408: h1 reports")


def test_smaller_packets__no_remedy_when_the_planes_share_an_interface() -> None:
    line = smaller_packets("h1", 1308, {1: 8908, 2: 8908}, {1: 1308, 2: 8908}, {1: "a", 2: "a"})
    assert "-B" not in line


def test_silent_paths__whole_planes_and_parts() -> None:
    planes = [1, 1, 2, 2, 3, 3]
    assert silent_paths("h1", planes, [], NICS) == ""
    assert silent_paths("h1", planes, [2, 3], NICS) == "plane 2 (eth2) to h1 does not answer"
    assert silent_paths("h1", planes, [0, 2, 3, 4, 5], NICS) == (
        "planes 2 (eth2) and 3 (eth3) to h1 do not answer;"
        " 1 of 2 paths to h1 on plane 1 (eth1) do not answer"
    )


def test_named__many_planes() -> None:
    assert plane_names(range(1, 5), {}) == "planes 1, 2, 3 and 4"
    assert plane_names(range(1, 8), {}) == "planes 1, 2, 3, 4 and 3 more"


def test_limits__the_least_of_each_plane() -> None:
    assert plane_limits([(1, 8908), (2, 1408), (1, 1388), (3, 9999)], 8908) == {
        1: 1388,
        2: 1408,
        3: 8908,
    }
