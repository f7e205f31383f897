# SPDX-License-Identifier: Apache-2.0
"""The tables of `mrc top`."""

from __future__ import annotations

import copy
import re

import pytest
from endpoints import SNAPSHOT
from project_text import ROOT

from mrc.cli.terminal import Block, blocks_text
from mrc.cli.top import DROPS, MAX_ROWS, checked, path_blocks, qp_blocks, summary_blocks, with_rates


def test_blocks__what_is_shown() -> None:
    endpoint = with_rates(None, checked(SNAPSHOT))
    title, drops, planes = summary_blocks(endpoint)
    (qps,), (paths,) = qp_blocks(endpoint, 1), path_blocks(endpoint, 1)
    assert title.text() == "h0: mrc send, pid 7, UDP port 4791, 1 QP"
    assert drops.text() == "  so far: 3 dropped (too short), 2 timeouts"
    assert planes.rows == [(1, "p1", "suspended", "0 bit/s", "0 bit/s", "-", 1)]
    assert qps.rows[0][:3] == ("0x001234", "h1", "RTS") and qps.rows[0][-2] == "250 us"
    assert paths.rows == [("h1", 1, "t1:1.0", "ASSUMED_BAD", "-", 1)]


@pytest.mark.parametrize(
    ("planes", "state"),
    [
        ([(False, False, 100)], "up"),
        ([(False, True, 9)], "slow 9%"),
        ([(False, True, 9), (False, True, 7)], "slow 7%"),
        ([(True, False, 100), (False, True, 20)], "suspended 1/2"),
    ],
)
def test_summary_blocks__state_of_a_plane(planes: list[tuple[bool, bool, int]], state: str) -> None:
    (qp,) = SNAPSHOT["qps"]
    qps = [
        qp | {"planes": [
            qp["planes"][0] | {"suspended": suspended, "slow": slow, "share_percent": percent}
        ]}
        for suspended, slow, percent in planes
    ]  # fmt: skip
    found = checked(SNAPSHOT | {"qps": qps})
    assert summary_blocks(with_rates(None, found))[-1].rows[0][2] == state


def test_summary_blocks__drops_hurt_when_they_grow_and_are_not_usual() -> None:
    later = SNAPSHOT | {
        "monotonic_ns": 3 * 10**9,
        "drops": {"ICRC": 13, "DUPLICATE": 90, "SHORT": 1},
        "counters": {"TIMEOUTS": 2, "RX_OVERFLOW": 20, "SPURIOUS": 9, "RX_DATA": 5},
    }
    before = SNAPSHOT | {"drops": {"ICRC": 3, "SHORT": 1}}
    shown = with_rates(checked(before), checked(later))
    assert shown.drops_per_second == {"ICRC": 5, "DUPLICATE": 45}
    hurts, rest = summary_blocks(shown)[1:3]
    assert hurts.text() == ("  now: 13 dropped (wrong ICRC) 5/s, 20 receive buffer overflows 10/s")
    assert rest.text() == (
        "  so far: 90 dropped (duplicates), 1 dropped (too short), 2 timeouts, 9 spurious losses"
    )
    assert (hurts.style, rest.style) == ("bold red", "dim")


def test_drops__every_reason_has_words() -> None:
    listed = (ROOT / "csrc/core/drops.def").read_text()
    assert set(re.findall(r"^X\((\w+),", listed, re.MULTILINE)) == DROPS.keys()


def test_summary_blocks__fit_80_columns_and_24_lines() -> None:
    (qp,) = SNAPSHOT["qps"]
    planes = [
        qp["planes"][0] | {"plane": i, "suspended": True, "rtt_ns": 123_456, "sent_bytes": 10**9,
                           "received_bytes": 10**9, "lost_packets": 10**5}
        for i in range(1, 9)
    ]  # fmt: skip
    ports = [{"plane": i, "nic": "enp193s0f0np" + str(i), "address": "::"} for i in range(1, 9)]
    many = SNAPSHOT | {"ports": ports, "qps": 8 * [qp | {"planes": planes}], "qps_total": 8}
    lines = blocks_text(summary_blocks(with_rates(None, checked(many)))).split("\n")
    assert len(lines) <= 23 and max(map(len, lines)) <= 80
    assert sum("suspended 8/8" in line for line in lines) == 8


def test_path_blocks__the_worst_paths_first_and_not_too_many() -> None:
    many = copy.deepcopy(SNAPSHOT)
    (ev,) = many["qps"][0]["evs"]
    good = [ev | {"path": f"t1:1.{i}", "state": "GOOD"} for i in range(1, 100)]
    many["qps"][0]["evs"] = [*good, ev, ev | {"state": "GOOD"}]
    paths = path_blocks(with_rates(None, checked(many)), MAX_ROWS)[-1]
    assert len(paths.rows) == MAX_ROWS and paths.title == "paths (EVs), 68 more"
    assert paths.rows[0][2:4] == ("t1:1.0", "ASSUMED_BAD 1, GOOD 1")


def test_blocks_text() -> None:
    assert blocks_text([Block("a"), Block("b", ("n",), [(1,)])]) == "a\nb\nn\n1"
