# SPDX-License-Identifier: Apache-2.0
"""`mrc send` over a round trip for which the PSNs of one QP are too few.

h0 -- t0:1.0 -- t1:1.x -- t0:1.1 -- h1      four planes of 200 Mbit/s, 31 ms a link: a round trip
                                            of 250 ms holds 25 MB, 4096 PSNs of MTU 1500 5.5 MB
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from netns.processes import Hosts
from printed import printed

from mrc.testbed.bed import Testbed
from mrc.testbed.shape import Fabric

PAYLOAD = 1344  # at an interface MTU of 1500


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    with Testbed(
        f"long-{os.getpid()}",
        planes=4,
        t1=2,
        mtu=1500,
        rate="200mbit",
        delay_ns=31_000_000,
        fabric=Fabric.EMULATED,
    ) as bed:
        yield bed


@pytest.mark.slow
def test_send__several_qps_where_the_way_is_long(hosts: Hosts, tmp_path: Path) -> None:
    inbox, file = tmp_path / "inbox", tmp_path / "a"
    inbox.mkdir()
    file.write_bytes(random.Random(1).randbytes(160 << 20))
    receiver = hosts.recv(inbox, "--once", "--json", "--bins")
    sent = printed("send", hosts.send("--json", file).ends(0))
    received = printed("recv", receiver.ends(0))
    assert (inbox / "a").read_bytes() == file.read_bytes()
    assert (sent["mpr"], sent["path_mtu_bytes"]) == (4096, PAYLOAD)
    assert 1 < sent["qps"] == received["qps"] <= 16
    moved = sum(plane["received_bytes"] for plane in received["planes"])
    assert 1 <= moved / (160 << 20) < 1.01, "over all QPs each byte once, plus some messages"
    recorded = sum(received["bins"]["bytes"])
    assert recorded == pytest.approx(moved, rel=0.001), "of all QPs, except some messages"
    assert len(sent["evs"]) == 8 * sent["qps"]
