# SPDX-License-Identifier: Apache-2.0
"""Results of the demonstration: four planes of 80 Mbit/s, one silent for 1 s."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from mrc.demo import cli as demo
from mrc.demo.run import (
    RECOVERED_SHARE,
    SETTLE_SECONDS,
    WINDOW_SECONDS,
    WIRE_OVERHEAD_BYTES,
    DemoError,
    DemoPlan,
    DemoResult,
    Timeline,
    TimeSpan,
    scratch,
    write_random,
)
from mrc.results.plain import plain
from mrc.testbed.plan import BURST_BYTES

MTU = 8858
PLANE = 80e6 * MTU / (MTU + WIRE_OVERHEAD_BYTES)


def result(*, dead: float, share: float = 1.0) -> DemoResult:
    """At capacity for 1 s; nothing for `dead` s; the three survivors at `share` until 2 s; all."""
    bins = []
    for step in range(300):
        now = step / 100
        rate = 4 * PLANE if now < 1 or now >= 2 else 0 if now < 1 + dead else 3 * PLANE * share
        bins.append(int(rate / 8 / 100))
    return DemoResult(
        plan=DemoPlan("demo", 80_000_000, planes=4, t1=2, bytes=sum(bins), seed=1),
        timeline=Timeline(0.0, 0.01, bins),
        sender={"path_mtu_bytes": MTU, "sent_packets": 5000, "retransmitted_packets": 7},
        receiver={},
        plane_bytes=[],
        began=0.0,
        failed=1.0,
        silent=1.0,
        healed=2.0,
        ended=3.0,
        identical=True,
    )


def test_result__capacities_are_of_payload() -> None:
    found = result(dead=0.03)
    assert found.plane_capacity == pytest.approx(80e6 * 8858 / 9000)
    assert found.capacity == pytest.approx(4 * PLANE)
    assert found.surviving_capacity == pytest.approx(3 * PLANE)


def test_result__goodput_before_and_after() -> None:
    found = result(dead=0.03)
    assert found.goodput_before == pytest.approx(4 * PLANE, rel=1e-3)
    assert found.goodput_after == pytest.approx(3 * PLANE, rel=1e-3)


def test_result__a_heal_after_the_end_lowers_no_goodput() -> None:
    """On a busy machine the time from the end to the heal counted as time of the fault."""
    found = structs.replace(result(dead=0.0), ended=1.8, healed=2.5)
    assert found.healed == 1.8
    assert found.goodput_after == pytest.approx(3 * PLANE, rel=1e-3)


@pytest.mark.parametrize(
    "times",
    [
        {"silent": 1.9, "healed": 2.5, "ended": 1.8},  # the end came before the fault
        {"silent": 1.75, "healed": 2.5, "ended": 1.8},  # or so soon after it that nothing settled
        {"silent": 1.95, "healed": 2.0},
        {"began": 0.95},
    ],
)
def test_result__of_a_transfer_that_is_too_short(times: dict[str, float]) -> None:
    """It names the remedy, and no figures of a time in which nothing was measured."""
    with pytest.raises(DemoError, match="too soon to show a failure: choose --size 256MiB or more"):
        structs.replace(result(dead=0.0), **times)


def test_planes_table__a_time_that_did_not_exist_is_not_measured() -> None:
    """The file arrived before the plane was healed."""
    found = structs.replace(result(dead=0.0), ended=1.8, healed=2.5)
    found.plane_bytes = [{1: 10_000_000}, {1: 20_000_000}, {1: 20_000_000}]
    found.sender["planes"] = [
        {"plane": 1, "sent_bytes": 20_000_000, "sent_packets": 2300, "lost_packets": 0}
    ]
    row = demo._planes_table(found).splitlines()[1]
    assert re.search(r"80 Mbit/s +100 Mbit/s +not measured +2300", row), row


def test_result__what_waited_does_not_count_as_carried_later() -> None:
    """The receiver is 50 ms late at 0.1 s, and catches up in the next 60 ms."""
    found = result(dead=0.0)
    late, usual = int(4 * PLANE * 0.05 / 8), int(4 * PLANE / 8 / 100)
    bins = [usual] * 100
    bins[5:10] = [0] * 5
    bins[10:16] = [usual + late // 6] * 6
    found.timeline = Timeline(0.0, 0.01, bins)
    assert found.timeline.goodput(SETTLE_SECONDS, 1.0) > 1.05 * found.capacity
    assert found.before.start == pytest.approx(0.16)
    assert found.goodput_before == pytest.approx(found.capacity, rel=1e-3)


def test_limit__is_the_rate_and_full_buckets() -> None:
    found = result(dead=0.0)
    with_buckets = found.limit(4, TimeSpan(0.0, 0.5)) - 4 * PLANE
    assert with_buckets * 0.5 / 8 == pytest.approx(4 * BURST_BYTES * PLANE / 80e6)


@pytest.mark.parametrize("dead", [0.05, 0.1, 0.2])
def test_result__recovery_takes_as_long_as_nothing_arrives(dead: float) -> None:
    found = result(dead=dead)
    assert found.recovery_seconds == pytest.approx(dead, abs=WINDOW_SECONDS / 2)
    assert found.below_seconds == pytest.approx(dead, abs=WINDOW_SECONDS / 2)


def test_result__no_dip() -> None:
    assert result(dead=0.0).recovery_seconds == 0.0
    assert result(dead=0.0).below_seconds == 0.0


def test_result__never_back_at_the_level() -> None:
    found = result(dead=0.1, share=RECOVERED_SHARE - 0.02)
    assert found.recovery_seconds is None
    assert found.below_seconds == pytest.approx(1.0, abs=WINDOW_SECONDS)


def test_report__all_of_it() -> None:
    body = plain(result(dead=0.1).report())
    assert body["identical"] is True
    assert body["retransmitted_packets"] == 7
    assert len(body["goodput"]) == 150
    assert body["failed_after_seconds"] == 1.0
    assert {"recovery_seconds", "goodput_before_bits_per_second"} <= body.keys()


def test_chart__of_a_transfer_shorter_than_a_bin() -> None:
    found = result(dead=0.0)
    found.ended = found.began + 0.01
    assert demo._chart(found) == ["too short for a chart: use a larger --size"]


def test_write_random__same_seed_same_bytes(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    for path, seed in ((a, 1), (b, 1), (c, 2)):
        write_random(path, (1 << 20) + 5, seed)
    assert a.stat().st_size == (1 << 20) + 5
    assert a.read_bytes() == b.read_bytes() != c.read_bytes()


def no_descriptors(*_: Any, **__: Any) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize("descriptors", [True, False])
def test_scratch__is_removed(
    tmp_path: Path, descriptors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DemoError), scratch(tmp_path) as (source, inbox):
        source.write_bytes(b"1")
        (inbox / ".demo.bin.part").write_bytes(b"1")
        if not descriptors:
            monkeypatch.setattr(shutil, "rmtree", no_descriptors)
        raise DemoError
    assert list(tmp_path.iterdir()) == []


def test_scratch__without_a_descriptor_to_begin_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "open", no_descriptors)
    with pytest.raises(OSError, match="Too many open files"), scratch(tmp_path):
        raise AssertionError("not reached")
    assert list(tmp_path.iterdir()) == []


def test_scratch__removes_what_a_killed_demo_has_left(tmp_path: Path) -> None:
    with scratch(tmp_path) as (running, _), scratch(tmp_path) as (killed, _):
        killed.write_bytes(b"1")
        shutil.copytree(killed.parent, tmp_path / "mrc-demo-killed")
        for folder in tmp_path.iterdir():
            os.utime(folder, (0, 0))
        with scratch(tmp_path) as (new, _):
            assert {*tmp_path.iterdir()} == {each.parent for each in (running, killed, new)}
