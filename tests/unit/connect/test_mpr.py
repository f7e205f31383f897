# SPDX-License-Identifier: Apache-2.0
"""The window of PSNs for given rates, round trips and path MTUs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from endpoints import (
    BUDGET_SECONDS,
    LOOPBACK,
    Pair,
    connected_pair,
    loopback_config,
    pattern,
    transfer,
)

from mrc import Context, Queues, Spraying
from mrc.connect import proof
from mrc.connect.proof import UNKNOWN_BPS, links_bps, psns_for

US, MS = 1_000, 1_000_000


@pytest.mark.parametrize(
    ("link_bps", "rtt_ns", "path_mtu", "psns"),
    [
        # A rack: the minimum in bytes, so more PSNs if packets are small.
        (4 * 10**8, 50 * US, 8844, 1024),
        (4 * 10**10, 100 * US, 8844, 1024),
        (4 * 10**8, 50 * US, 1384, 2048),
        (4 * 10**8, 50 * US, 1408, 2048),
        (4 * 10**10, 100 * US, 1384, 2560),
        (10**8, 50 * US, 256, 4096),
        # A campus, a country, an ocean.
        (2 * 10**9, 5 * MS, 8844, 1024),
        (2 * 10**9, 25 * MS, 8844, 1536),
        (4 * 10**8, 25 * MS, 1384, 2048),
        (4 * 10**8, 100 * MS, 8844, 1152),
        (4 * 10**8, 100 * MS, 1384, 4096),
        (2 * 10**9, 100 * MS, 8844, 4096),
        (4 * 10**11, 10**10, 256, 4096),
        (0, 0, 8844, 1024),
    ],
)
def test_psns_for__table(link_bps: int, rtt_ns: int, path_mtu: int, psns: int) -> None:
    assert psns_for(link_bps, rtt_ns, path_mtu) == psns


@pytest.mark.parametrize("speed", ["", "-1\n", "0\n", "unknown\n", None])
def test_links_bps__what_does_not_know_its_rate_counts_as_10_gbits(
    tmp_path: Path, speed: str | None
) -> None:
    for nic, text in (("eth0", "1000\n"), ("eth1", speed)):
        (tmp_path / nic).mkdir()
        if text is not None:
            (tmp_path / nic / "speed").write_text(text)
    assert links_bps(["eth0"], tmp_path) == 10**9
    assert links_bps(["eth1", "eth0", "eth0"], tmp_path) == UNKNOWN_BPS + 10**9


def test_links_bps__of_the_slowest_that_has_a_rate(tmp_path: Path) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow/speed").write_text("1\n")
    assert links_bps(["slow"], tmp_path) == 10**6


@pytest.mark.parametrize(
    ("options", "psns"),
    [
        ({}, 1024),
        ({"spraying": Spraying(mtu_limit=1384)}, 2048),
        ({"spraying": Spraying(mtu_limit=256)}, 4096),
        ({"queues": Queues(mpr=128)}, 128),
    ],
    ids=str,
)
async def test_connect__as_many_psns_as_the_way_calls_for(
    options: dict[str, Any], psns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "LATE_NS", 0)
    monkeypatch.setattr(proof, "UNKNOWN_BPS", 1_000_000)  # this host's load must not matter
    async with connected_pair(**options) as pair:
        for qp in (pair.near, pair.far):
            assert qp.mpr == (await qp.query()).peer_mpr == psns


async def test_connect__each_end_keeps_to_what_the_other_grants() -> None:
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        Context(loopback_config(spraying=Spraying(mtu_limit=256))) as near_context,
        Context(
            loopback_config(spraying=Spraying(mtu_limit=256), queues=Queues(mpr=256))
        ) as far_context,
        await far_context.listen(LOOPBACK[4], 0) as listener,
        await near_context.connect(LOOPBACK[4], listener.port) as near,
        await listener.accept() as far,
    ):
        assert (near.mpr, far.mpr) == (256, 256)
        pair = Pair(near_context, far_context, listener, near, far)
        data = pattern(2_000_000)
        assert await transfer(pair, data) == data
