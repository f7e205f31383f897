# SPDX-License-Identifier: Apache-2.0
"""Results of the demonstration: four planes of 80 Mbit/s, one silent for 1 s."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from mrc.cli.main import main
from mrc.demo import cli as demo
from mrc.demo.cli import (
    RECOVERED_SHARE,
    SETTLE_SECONDS,
    WINDOW_SECONDS,
    WIRE_OVERHEAD_BYTES,
    DemoError,
    DemoPlan,
    DemoResult,
    Timeline,
    TimeSpan,
    planes,
    rate,
    scratch,
    size,
    write_random,
)
from mrc.results import plain
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


# ---- Goodput over time ---------------------------------------------------------------------------
#
# Goodput from bins: a second at full rate, a gap, and three quarters of the rate after it.


# 100 bytes every 0.1 s until 1.0 s, nothing until 1.3 s, then 75 bytes every 0.1 s until 2.3 s.
LINE = Timeline(0.0, 0.1, [100] * 10 + [0] * 3 + [75] * 10)


@pytest.mark.parametrize(
    ("seconds", "count"),
    [(-1, 0), (0, 0), (0.05, 50), (0.5, 500), (1.0, 1000), (1.2, 1000), (1.35, 1037.5), (9, 1750)],
)
def test_bytes_at__within_and_beyond_bins(seconds: float, count: float) -> None:
    assert LINE.bytes_at(seconds) == pytest.approx(count)


def test_reached__end_of_the_bin_that_has_it() -> None:
    assert LINE.reached(0) == 0
    assert LINE.reached(101) == pytest.approx(0.2)
    assert LINE.reached(1750) == pytest.approx(2.3)
    assert LINE.reached(1751) is None


def test_last_below__start_of_the_bin_that_has_it() -> None:
    assert LINE.last_below(0) == 0
    assert LINE.last_below(1) == 0
    assert LINE.last_below(101) == pytest.approx(0.1)
    assert LINE.last_below(1751) == pytest.approx(2.3)


@pytest.mark.parametrize(
    ("start", "end", "rate"),
    [(0, 1, 8000), (0.95, 1.05, 4000), (1, 1.3, 0), (1.3, 2.3, 6000), (1, 1, 0), (2, 1, 0)],
)
def test_goodput__mean_in_bits(start: float, end: float, rate: float) -> None:
    assert LINE.goodput(start, end) == pytest.approx(rate, abs=1e-6)


def test_ahead__of_a_steady_rate() -> None:
    """It falls behind from 0.2 s to 0.4 s and catches up until 0.6 s."""
    line = Timeline(0.0, 0.1, [100, 100, 50, 50, 150, 150, 100])
    assert line.ahead(0.0, 0.5, 8000) == pytest.approx(0.0)
    assert line.ahead(0.3, 0.5, 8000) == pytest.approx(0.5)
    assert line.ahead(0.3, 0.7, 8000) == pytest.approx(0.6)
    assert line.ahead(0.4, 0.4, 8000) == pytest.approx(0.4)


def test_bins__whole_ones_only() -> None:
    bins = LINE.bins(0.8, 1.55, 0.2)
    assert [(round(each.start, 6), round(each.bits_per_second, 6)) for each in bins] == [
        (0.8, 8000),
        (1.0, 0),
        (1.2, 3000),
    ]
    assert LINE.bins(1, 1.1, 0.2) == []


def intervals(level: float, start: float, end: float) -> list[tuple[float, float]]:
    found = LINE.below(start, end, level, 0.1)
    return [(round(each.start, 6), round(each.end, 6)) for each in found]


def test_below__from_half_a_window_into_the_gap_to_half_a_window_before_its_end() -> None:
    assert intervals(4001, 0.5, 2.2) == [(1.0, 1.32)], "two thirds of the window at 6000 suffice"
    assert intervals(1, 0.5, 2.2) == [(1.05, 1.26)]


def test_below__never_and_all_the_time() -> None:
    assert intervals(5900, 1.4, 2.2) == []
    assert intervals(6100, 1.4, 2.2) == [(1.4, 2.2)]


def test_below__two_dips() -> None:
    line = Timeline(0.0, 0.1, [0 if n in (5, 15) else 100 for n in range(20)])
    found = line.below(0.1, 1.9, 7000, 0.1)
    centres = [each.start + each.seconds / 2 for each in found]
    assert centres == pytest.approx([0.55, 1.55], abs=0.01)


def test_timeline__without_bins() -> None:
    empty = Timeline(0.0, 0.1, [])
    assert empty.bytes_at(1) == 0
    assert empty.reached(1) is None
    assert empty.goodput(0, 1) == 0


# ---- Options -------------------------------------------------------------------------------------
#
# The options of `mrc demo`.


@pytest.mark.parametrize(
    ("text", "count"), [("1MiB", 1 << 20), ("2 gib", 2 << 30), ("1048577", (1 << 20) + 1)]
)
def test_size__accepted(text: str, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize(
    ("convert", "text"),
    [
        (size, "1023KiB"),
        (size, "1MB"),
        (size, ""),
        (size, "-1MiB"),
        (planes, "1"),
        (planes, "four"),
        (rate, "fast"),
        (rate, "none"),
    ],
)
def test_demo_types__refused(convert: object, text: str) -> None:
    with pytest.raises(ValueError):
        convert(text)  # type: ignore[operator]


def test_demo__wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--planes", "1"]) == 2
    assert "one of the planes fails" in capsys.readouterr().err


def test_help__begins_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--help"])
    assert capsys.readouterr().out.startswith("examples:\n  mrc demo")


# ---- A busy machine ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("got", "busy", "stolen", "said"),
    [
        (0.78, 0.8, 0.0, "is not busy: mrc gets 98% of the time of 2 processors"),
        (
            0.5, 0.78, 0.0,
            "is busy: mrc gets 62% of the time of 2 processors;"
            " other programs take 35% of its processors",
        ),
        (
            0.4, 0.6, 0.16,
            "is busy: mrc gets 50% of the time of 2 processors;"
            " other programs take 25% of its processors, its hypervisor withholds 20%",
        ),
    ],
)  # fmt: skip
def test_shares__in_plain_words(got: float, busy: float, stolen: float, said: str) -> None:
    found = demo.processor_shares(2, got, 0.8, total=0.8, busy=busy, stolen=stolen)
    assert (str(found), found.is_busy) == (said, said.startswith("is busy"))


def test_measure__others_that_compete() -> None:
    """Two spinning programs share one processor, so that each gets half of it or less."""
    allowed = os.sched_getaffinity(0)
    one = {min(allowed)}
    os.sched_setaffinity(0, one)
    try:
        spin = ["sh", "-c", "echo; while :; do :; done"]
        with subprocess.Popen(spin, stdout=subprocess.PIPE) as rival:
            assert rival.stdout is not None
            try:
                assert rival.stdout.readline() == b"\n"
                found = demo.measure_processors(0.2)
            finally:
                rival.kill()
    finally:
        os.sched_setaffinity(0, allowed)
    assert found.count == 1 and found.is_busy and found.share < 0.75
    assert found.others > 0
