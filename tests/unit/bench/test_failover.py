# SPDX-License-Identifier: Apache-2.0
"""Figures of `bench/failover` from a run, and their display."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import failover_figures
import failover_page
import failover_run
import failover_scenario
import failover_svg
import failover_text
import figures
import pytest
from slowness import PATIENCE

from mrc.sim import drawing

SVG = "{http://www.w3.org/2000/svg}"
BENCH = Path(__file__).parents[3] / "bench"
PLANE_BPS = 400e6
BIN = 0.001
BYTES = int(PLANE_BPS / 8 * BIN)  # bytes of a plane in a bin
SHORT = 10.0  # speed-up over the scenario


bench = SimpleNamespace(
    scenario=failover_scenario, figures=failover_figures, run=failover_run, svg=failover_svg,
    page=failover_page, text=failover_text,
)  # fmt: skip


def ideal(events: Any, seconds: float) -> list[int]:
    """Bins of a contender with the full rate of the planes without a fault."""
    parts = bench.scenario.phases(events, seconds, 4)
    bins = []
    for i in range(round(seconds / BIN)):
        (planes,) = [p.planes for p in parts if p.start <= (i + 0.5) * BIN < p.end]
        bins.append(round(planes * BYTES))
    return bins


def run_of(name: str, bins: Sequence[float], story: Any = None, **seen: Any) -> dict[str, Any]:
    """A run through the story as in JSON, by default shortened."""
    bed = SimpleNamespace(planes=4, payload_capacity_bps=lambda: 4 * PLANE_BPS)
    contender = SimpleNamespace(name=name, what="as <usual>", measured="bytes", bed=bed)
    story = story or bench.scenario.STORY.faster(SHORT)
    got = bench.run.Seen(start=100.0, width=BIN, streams=[bins], **seen)
    found: dict[str, Any] = bench.run.document(contender, story, list(story.events), got, 100.0)
    return found | {"stolen_cpu_seconds": 0.25}


def result_of() -> dict[str, Any]:
    """A whole result: mrc without losses, and a rival that stalls."""
    story = bench.scenario.STORY.faster(SHORT)
    bins = ideal(story.events, story.seconds)
    changes = [
        {"at": 101.2 + i / 10, "plane": 1, "path": "t1:1.0", "old": old, "new": new,
         "reason": "LOSS"}
        for i, (old, new) in enumerate([("GOOD", "ASSUMED_BAD"), ("ASSUMED_BAD", "GOOD")])
    ]  # fmt: skip
    ours = run_of(
        "mrc", bins,
        planes={str(plane): [count // 4 for count in bins] for plane in range(1, 5)},
        evs=[{"plane": p, "path": f"t1:{p}.{i}"} for p in range(1, 5) for i in range(2)],
        ev_changes=changes,
        plane_changes=[
            {"at": 100.21, "plane": 1, "suspended": True, "reason": "SILENT"},
            {"at": 100.61, "plane": 1, "suspended": False, "reason": "PROBED"},
        ],
    )  # fmt: skip
    stalled = [0 if 200 <= i < 900 else count // 4 for i, count in enumerate(bins)]
    theirs = run_of("TCP & <co>", stalled)
    checks = bench.figures.checks(ours["figures"], bench.figures.events_of(ours))
    return {
        "commit": "0000000",
        "ended": "2026-01-01T00:00:00+00:00",
        "command": "bench/failover",
        "machine": {"kernel": "6.1", "cpu": "some", "cores": 2,
                    "load_at_start": [0.5, 0.25, 0.125], "sysctls": {"net/core/rmem_max": "1"}},
        "bed": {"planes": 4, "t1": 2, "mtu": 9000, "rate_bits_per_second": 500_000_000,
                "plane_payload_bits_per_second": PLANE_BPS},
        "runs": [ours, theirs],
        "repeats": 1,
        "checks": figures.told([list(checks)]),
        "skipped": {"UCX over TCP": "not here"},
    }  # fmt: skip


# ---- figures ------------------------------------------------------------------------------------


def test_phases__a_slow_plane_counts_for_what_it_has_left() -> None:
    story = bench.scenario.STORY
    found = bench.scenario.phases(story.events, story.seconds, 4)
    assert [(p.start, p.end, p.planes) for p in found] == [
        (0, 2, 4), (2, 6, 3), (6, 8, 4), (8, 10, 3), (10, 12, 4), (12, 14, 3), (14, 16, 4),
        (16, 18, pytest.approx(3.1)), (18, 20, 4),
    ]  # fmt: skip
    one_by_one = bench.scenario.ONE_BY_ONE
    found = bench.scenario.phases(one_by_one.events, one_by_one.seconds, 4)
    assert [p.planes for p in found] == [4, 3, 2, 1, 0, 1, 4]


def test_stall__holes_and_what_never_came() -> None:
    series = bench.figures.Series(10.0, 0.001, [1, 0, 0, 1, 1, 0, 0, 0])
    assert series.stall(10.0, 10.005) == pytest.approx((0.003, 10.001))
    assert series.stall(10.0, 10.008) == pytest.approx((0.004, 10.005))
    assert series.stall(10.0, 10.020) == pytest.approx((0.016, 10.005))
    assert series.stall(10.003, 10.005)[0] == 0.0


def checks_of(bins: Sequence[float], story: Any = None) -> dict[str, Any]:
    ours = run_of("mrc", bins, story)
    found = bench.figures.checks(ours["figures"], bench.figures.events_of(ours))
    return {check.name: check for check in found}


def test_checks__all_met_by_who_always_has_the_capacity() -> None:
    story = bench.scenario.STORY.faster(SHORT)
    found = checks_of(ideal(story.events, story.seconds))
    assert len(found) == 16
    assert all(check.met for check in found.values())


def test_checks__a_gap_is_seen_and_so_is_who_never_returns() -> None:
    story = bench.scenario.STORY.faster(SHORT)
    bins = ideal(story.events, story.seconds)
    late = [0 if 200 <= i < 212 else count for i, count in enumerate(bins)]
    found = checks_of(late)
    # 1.5 ms of silence are 3% of the 50 ms over which goodput is averaged.
    assert found["plane 1 silent: back to 97%, s"].value == pytest.approx(0.011, abs=0.001)
    assert found["plane 1 silent: back to 97%, s"].met
    assert found["plane 1 silent: longest gap in the first 0.1 s"].value == pytest.approx(0.013)
    assert not found["plane 1 silent: longest gap in the first 0.1 s"].met
    gone = [2 * BYTES if 200 <= i < 600 else count for i, count in enumerate(bins)]
    found = checks_of(gone)
    assert found["plane 1 silent: back to 97%, s"].value == pytest.approx(0.4)
    assert found["plane 1 silent: mean from then on"].value == pytest.approx(2 / 3, abs=0.01)
    assert not found["plane 1 silent: back to 97%, s"].met
    assert found["NIC link down: back to 97%, s"].met


def test_checks__what_a_slow_plane_has_left_is_wanted_too() -> None:
    """The check requires the slow plane's remaining rate, and its full rate after it heals."""
    story = bench.scenario.STORY
    bins = ideal(story.events, story.seconds)
    slow = [2.9 * BYTES if 16.05 <= i * BIN < 18 else count for i, count in enumerate(bins)]
    lame = [3 * BYTES if i * BIN >= 18 else count for i, count in enumerate(bins)]
    late = [BYTES if 16 <= i * BIN < 16.3 else count for i, count in enumerate(bins)]
    for seen, name, value, is_met in (
        (bins, "plane 1 at 10%: back to 95%, s", 0, True),
        (bins, "plane 1 at 10%: mean from then on", 1, True),
        (bins, "full rate again: capacity used again, s", 0, True),
        (slow, "plane 1 at 10%: mean from then on", 2.9 / 3.1, False),
        (late, "plane 1 at 10%: back to 95%, s", 0.3 - 0.05 * 0.05 * 3.1 / 2.1, False),
        (lame, "full rate again: capacity used again, s", 2, False),
    ):
        check = checks_of(seen, story)[name]
        assert check.value == pytest.approx(value, abs=0.002), name
        assert check.met is is_met


def test_checks__a_dip_while_a_plane_returns() -> None:
    story = bench.scenario.STORY.faster(SHORT)
    bins = ideal(story.events, story.seconds)
    dip = [BYTES if 610 <= i < 660 else count for i, count in enumerate(bins)]
    dip = [3 * BYTES if 600 <= i < 610 else count for i, count in enumerate(dip)]
    check = checks_of(dip)["plane 1 healed: worst 50 ms until then"]
    assert check.value == pytest.approx(0.36, abs=0.02)  # 48 ms of a third, 2 ms of all
    assert not check.met


def test_seen_by_mrc__reads_perf() -> None:
    bins = {"start_monotonic_ns": 5_000_000_000, "width_ns": 500_000, "bytes": [1, 2],
            "planes": [{"plane": 1, "bytes": [1, 0]}, {"plane": 2, "bytes": [0, 2]}]}  # fmt: skip
    changes = {
        "start_monotonic_ns": 4_000_000_000,
        "evs": [{"at_ns": 250_000_000, "plane": 1, "path": "t1:1.0", "new": "SKIP"}],
        "planes": [],
    }
    client = {"changes": changes, "retransmitted_bytes": 77}
    seen = bench.run.seen_by_mrc({"results": [{"client": client, "server": {"bins": bins}}]})
    assert (seen.start, seen.width, seen.streams) == (5.0, 0.0005, [[1, 2]])
    assert seen.planes == {"1": [1, 0], "2": [0, 2]}
    assert (seen.ev_changes[0]["at"], seen.resent_bytes) == (4.25, 77)


# ---- what is shown ------------------------------------------------------------------------------


def test_text__charts_figures_and_checks() -> None:
    shown = "\n".join(bench.text.lines(result_of()))
    assert "mrc: 98% of the planes' capacity; longest stall 0 ms" in shown  # it uses no lossy plane
    assert "TCP & <co>: " in shown and "longest stall 0.70 s" in shown
    assert re.search(r"\+-+S-+H-+D-+U-+L-+O-+T-+F-+", shown)
    assert re.search(r"plane 1 silent: back to 97%, s +0 +0 - 0 +<= 0.02 +met", shown)


def test_text__a_busy_machine_judges_nothing_that_is_not_met() -> None:
    result = result_of()
    missed = {**result["checks"][0], "name": "missed", "met": False}
    result["checks"].append(missed)
    assert re.search(r"missed .* NOT MET$", "\n".join(bench.text.lines(result)), re.M)
    result["busy"] = "this machine is busy"
    shown = "\n".join(bench.text.lines(result))
    assert re.search(r"missed .* not judged$", shown, re.M) and "NOT MET" not in shown
    assert re.search(r"plane 1 silent: back to 97%, s .* met$", shown, re.M)
    assert "not judged" in bench.page.page(result)


def test_failover__names_checks_that_are_not_judged(tmp_path: Path) -> None:
    """The result of an earlier run, without and with other load."""
    result = result_of()
    result["checks"].append({**result["checks"][0], "name": "missed", "met": False})
    for busy, code in (("", 0), ("this machine is busy: so", 77)):
        file = tmp_path / "run.json"
        file.write_text(json.dumps({**result, "busy": busy}))
        command: list[str | Path] = [sys.executable, BENCH / "failover", "--from", file]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "\nleft out: UCX over TCP: not here\n" in done.stdout
        assert done.returncode == code, done.stderr
        expected = f"bench: not judged: missed: {busy}. Run it again on an idle machine\n"
        assert done.stderr == (expected if busy else "")


def test_page__needs_no_network_and_escapes() -> None:
    page = bench.page.page(result_of())
    assert set(re.findall(r'https?://[^"]*', page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(script|link|img|iframe)|url\((?!#)|@import", page)
    assert "TCP &amp; &lt;co&gt;" in page and "<co>" not in page
    faults = ("plane 1 silent", "NIC link down", "20% loss", "plane 1 at 10%")
    for words in (*faults, "Gbit/s", "time, s", "6.1"):
        assert words in page


@pytest.mark.more
def test_story_svg__every_mark_is_there_once_drawn_again() -> None:
    runs = result_of()["runs"]
    picture = bench.svg.story_svg(runs, 4, PLANE_BPS)
    assert picture == bench.svg.story_svg(runs, 4, PLANE_BPS)
    found = [element.text for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]
    faults = [event["name"] for event in runs[0]["events"]]
    legend = ["a plane's goodput: none", "full", "EV good", "skipped", "bad",
              "plane suspended"]  # fmt: skip
    planes = [f"plane {plane}" for plane in range(1, 5)]
    summaries = [bench.figures.summary(run) for run in runs]
    for words in (*faults, *legend, *planes, *summaries, "mrc: planes and their EVs", "time, s",
                  "mrc", "TCP & <co>"):  # fmt: skip
        assert found.count(words) == 1, words
    assert found.count("Gbit/s") == len(runs)
    capacity = re.findall(r"stroke-dasharray: 4,3[^>]*stroke: var\(--ink\)", picture)
    assert len(capacity) == len(runs)
    shades = re.findall(r"fill: var\(--ink\); opacity: 0.08", picture)
    assert len(shades) == len(faults)
    for name in ("bad", "away"):  # one piece each, and the one of the legend
        assert len(re.findall(rf"style=\"fill: var\(--{name}\)", picture)) >= 2


def test_story_svg__is_xml_in_the_colours_of_the_theme() -> None:
    svg = bench.svg.story_svg(result_of()["runs"], 4, PLANE_BPS)
    root = ElementTree.fromstring(drawing.standalone(svg))
    assert root.tag == f"{SVG}svg"
    words = " ".join(str(text.text) for text in root.iter(f"{SVG}text"))
    assert "scenario story, 4 planes of 400 Mbit/s of payload" in words
    assert "hence values above 100%" in words and "in bins of 10 ms" in words
    assert not re.findall(r"#[0-9a-f]{6}\b", svg)
    assert set(re.findall(r"var\(--([\w-]+)\)", svg)) <= set(drawing.LIGHT)


# ---- in a browser -------------------------------------------------------------------------------


def load(
    page: Path, folder: Path, *options: str
) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """The rendered page and its requests, without the browser's own requests."""
    log = folder / "net.json"
    command = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--enable-logging=stderr", "--window-size=1000,600",
        f"--user-data-dir={folder / 'profile'}", "--dump-dom", f"--log-net-log={log}", *options,
        page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    events = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    pages = [each for each in events if "file:" in each.get("network_isolation_key", "")]
    return done, {each["url"] for each in pages if "url" in each}


def rows_of_png(data: bytes) -> list[bytes]:
    """The rows of a PNG of 8 bits a channel, as chromium writes them."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    place, packed, width, channels = 8, b"", 0, 0
    while place < len(data):
        size, kind = int.from_bytes(data[place : place + 4], "big"), data[place + 4 : place + 8]
        body = data[place + 8 : place + 8 + size]
        if kind == b"IHDR":
            width, channels = int.from_bytes(body[:4], "big"), {2: 3, 6: 4}[body[9]]
        packed += body if kind == b"IDAT" else b""
        place += 12 + size
    raw, step = zlib.decompress(packed), width * channels + 1
    rows, above = [], bytes(step - 1)
    for start in range(0, len(raw), step):
        above = unfilter(raw[start], raw[start + 1 : start + step], above, channels)
        rows.append(above)
    return [row if channels == 3 else drop_alpha(row) for row in rows]


def drop_alpha(row: bytes) -> bytes:
    return bytes(value for i, value in enumerate(row) if i % 4 != 3)


def unfilter(kind: int, row: bytes, above: bytes, channels: int) -> bytes:
    if kind == 0:
        return row
    out = bytearray(row)
    for i, value in enumerate(row):
        left = out[i - channels] if i >= channels else 0
        corner = above[i - channels] if i >= channels else 0
        if kind == 4:
            guess = left + above[i] - corner
            near = min((left, above[i], corner), key=lambda each: abs(guess - each))
        else:
            near = (0, left, above[i], (left + above[i]) // 2)[kind]
        out[i] = (value + near) & 255
    return bytes(out)


def pixels(path: Path) -> dict[bytes, int]:
    """The number of pixels of each colour."""
    counts: dict[bytes, int] = {}
    for row in rows_of_png(path.read_bytes()):
        for i in range(0, len(row), 3):
            counts[row[i : i + 3]] = counts.get(row[i : i + 3], 0) + 1
    return counts


ELSEWHERE = "http://127.0.0.1:9/x"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="apt-get install chromium")
def test_page__in_a_browser(tmp_path: Path) -> None:
    """It draws in the colours of the reader's theme, without errors, and loads nothing.

    The test adds one image to the page, to show that it would detect a load.
    """
    page, shot = tmp_path / "page.html", tmp_path / "shot.png"
    page.write_text(bench.page.page(result_of()) + f'<img src="{ELSEWHERE}">')
    for theme, scheme in ((drawing.LIGHT, 1), (drawing.DARK, 0)):
        done, asked = load(
            page,
            tmp_path,
            f"--screenshot={shot}",
            f"--blink-settings=preferredColorScheme={scheme}",
        )
        assert asked == {ELSEWHERE}
        assert "CONSOLE" not in done.stderr
        for words in ("mrc: planes and their EVs", "plane 1 silent", "time, s", "Gbit/s"):
            assert f">{words}</text>" in done.stdout
        found = pixels(shot)
        assert max(found, key=lambda colour: found[colour]).hex() == theme["paper"][1:]
        assert len(found) > 50
        assert bytes.fromhex(theme["line-0"][1:]) in found
