# SPDX-License-Identifier: Apache-2.0
"""What users read when one host refuses the other."""

from __future__ import annotations

from itertools import combinations

import pytest

from mrc.trust.security import WAYS, Commands

COMMANDS = Commands("mrc perf --server", "mrc perf h1")


@pytest.mark.parametrize("way", WAYS)
def test_no_such_way__names_a_command_for_each_set_of_ways(way: str) -> None:
    others = [each for each in WAYS if each != way]
    for count in range(len(others) + 1):
        for ways in combinations(others, count):
            text = COMMANDS.no_such_way("h1", way, ways)
            assert "h1" in text and ("mrc perf h1 --" in text or "--server --code" in text)
            assert len(text) < 300, "what a peer is told is cut there"
            assert "here" not in text.replace("other", "").split()


def test_no_such_way__whatever_a_peer_says() -> None:
    text = COMMANDS.no_such_way("h1", "key", [["code"], None, "code "])
    assert text.startswith("h1 lets no other host in")


def test_not_allowed__names_the_key() -> None:
    key = f"mrc:SHA256:{'A' * 43}"
    assert f"mrc perf --server --allow {key} lets it in" in COMMANDS.not_allowed(key)
    assert len(COMMANDS.not_allowed(key)) < 300
