# SPDX-License-Identifier: Apache-2.0
"""The page of a test bed: what it shows and changes, and in a browser, by clicks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from browser import Page, browser
from netns.processes import Hosts
from ports import free_port
from printed import printed
from slowness import PATIENCE

from mrc.errors import ArgumentError, StateError
from mrc.testbed.bed import Testbed
from mrc.view.fabric import FabricChange, FabricView

RATE_BPS = 100_000_000
BELOW, ABOVE = 3.3 * RATE_BPS, 3.5 * RATE_BPS  # of four planes: one fails, none fails


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    with Testbed(f"view-{os.getpid()}", rate=str(RATE_BPS)) as bed:
        yield bed


def view_of(bed: Testbed) -> FabricView:
    return FabricView(bed.name, lambda shape: f"{shape.hosts} hosts")


@pytest.mark.usefixtures("healed")
def test_view__reads_links_and_faults(bed: Testbed, hosts: Hosts) -> None:
    view = view_of(bed)
    drawn, first = view.read()
    assert drawn.title == "2 hosts" and drawn.planes == 4
    assert len(drawn.links) == 4 * (2 + 4) and first.seconds == 0
    hosts.start("h0", "paths", "--probe", "h1").ends(3)  # nobody listens there
    view.change(FabricChange("fail", "plane:2", loss=0.5))
    view.change(FabricChange("fail", "uplink:3.0.1", rate_share=0.1))
    again, links = view.read()
    assert again is drawn and links.seconds > 0
    assert len(links.rates_bps) == 2 * len(drawn.links)
    assert {name: fault.text for name, fault in links.faults.items()} == {
        "plane:2": "loss 50%", "uplink:3.0.1": "rate 10%",
    }  # fmt: skip
    (slow,) = (place for place, each in enumerate(drawn.links) if each.target == "uplink:3.0.1")
    assert links.limits_bps == {2 * slow: RATE_BPS // 10, 2 * slow + 1: RATE_BPS // 10}
    view.change(FabricChange("heal", "all"))
    assert bed.faults() == {} and view.read()[1].limits_bps == {}


def test_view__refuses_what_the_bed_lacks(bed: Testbed) -> None:
    with pytest.raises(ArgumentError, match="no plane 9"):
        view_of(bed).change(FabricChange("fail", "plane:9"))
    with pytest.raises(ArgumentError, match="the fault has no effect"):
        view_of(bed).change(FabricChange("fail", "plane:2", delay_ns=0))
    with pytest.raises(StateError, match="is not up"):
        FabricView(f"{bed.name}-gone", str).read()


@contextmanager
def viewing(*command: str) -> Iterator[str]:
    """Runs a command that serves the page; yields the page's address."""
    argv = [sys.executable, "-m", "mrc", *command, "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            yield printed("testbed view", process.stdout.readline())["url"]
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE)
        assert process.returncode == 130
        lines = process.stderr.readlines()
        assert len(lines) == 1 and lines[0].endswith("interrupted\n")


@pytest.mark.default
@pytest.mark.usefixtures("healed")
def test_cli__view_serves_the_page(bed: Testbed) -> None:
    with viewing("testbed", "view", "--name", bed.name) as url:
        with urlopen(url) as answer:
            assert b"<title>mrc" in answer.read()
        body = json.dumps({"do": "fail", "target": "plane:3"}).encode()
        change = Request(f"{url}change", body, {"Content-Type": "application/json"})
        with urlopen(change) as answer:
            assert answer.status == 204
        assert [*bed.faults()] == ["plane:3"]


def test_cli__top_serves_the_page_without_a_fabric() -> None:
    with viewing("top", "--web", "--local") as url, urlopen(f"{url}feed") as feed:
        while (line := feed.readline()) in (b":\n", b"\n"):
            pass  # nothing to say for a while
        assert line == b"event: endpoints\n"


def test_cli__top_finds_an_endpoint_that_starts_later_and_again(tmp_path: Path) -> None:
    """Before the first one there is a problem, and again after each."""
    port = free_port()
    recv = [sys.executable, *f"-m mrc recv --top --port {port} --output".split(), str(tmp_path)]

    def until(event: str, *words: str) -> None:
        told, line = "", ""
        while not (told == event and line.startswith("data: ") and all(w in line for w in words)):
            line = feed.readline().decode().strip()
            told = line.removeprefix("event: ") if line.startswith("event: ") else told

    with (
        viewing("top", "--web", f"127.0.0.1:{port}") as url,
        urlopen(f"{url}feed", timeout=PATIENCE) as feed,
    ):
        for _ in range(2):
            until("problem", f"TCP port {port}")
            with subprocess.Popen(recv, stderr=subprocess.DEVNULL) as receiver:
                until("problem", '"text":""')
                until("endpoints", '"endpoints":1')
                receiver.terminate()


# ---- in a browser -------------------------------------------------------------------------------

needs_browser = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="apt-get install chromium"
)
TRANSFER = "[...document.querySelectorAll('#rows tr')].find(r => r.textContent.includes('h0 → h1'))"
RATE = f"(({TRANSFER})?.cells[2].textContent ?? '')"


def until_rate(page: Page, least: float, most: float) -> None:
    """Waits until the goodput on the page is within these bit/s."""
    mbits = f"(parseFloat({RATE}) * 1e6 * {RATE}.includes('Mbit/s'))"
    page.until(f"{least} <= {mbits} && {mbits} <= {most}")


@pytest.mark.slow
@needs_browser
@pytest.mark.usefixtures("healed")
def test_page__a_click_fails_a_plane_and_heals_it(
    bed: Testbed, hosts: Hosts, tmp_path: Path
) -> None:
    """Goodput dips when a plane fails while data travel, and recovers; the page loads nothing from
    elsewhere and its scripts make no mistake.
    """
    hosts.start("h1", "perf", "--server").until_listening()
    hosts.start("h0", "perf", "h1", "-t", "120")
    with viewing("testbed", "view", "--name", bed.name) as url, browser(tmp_path) as page:
        page.open(url)
        until_rate(page, ABOVE, 5 * RATE_BPS)
        page.click('[data-target="plane:2"] text')
        until_rate(page, 2 * RATE_BPS, BELOW)
        assert [*bed.faults()] == ["plane:2"]
        page.until("document.querySelector('.plane.fails[data-target=\"plane:2\"]')")
        assert page.run("document.querySelector('#fault').textContent") == "silent"
        page.until("document.querySelector('.evs .bad')")  # it is suspended
        page.click("#heal")
        until_rate(page, ABOVE, 5 * RATE_BPS)
        assert bed.faults() == {}
        page.until("!document.querySelector('.plane.fails')")
        keys_and_slider(page, bed)
        assert page.complaints == []
        assert {each.split("?")[0] for each in page.requests} <= {
            url + name for name in ("", "feed", "change", *os.listdir("mrc/view/page"))
        }


def keys_and_slider(page: Page, bed: Testbed) -> None:
    """A T1, chosen by keys, loses packets: first the share that the slider has, then another."""
    page.click("input[value=loss]")
    page.run("document.querySelector('#fabric').focus()")
    for key in ("1", "ArrowDown", "ArrowRight", "Enter"):
        page.press(key)
    page.until("document.querySelector('#fault').textContent.startsWith('loss')")
    ((target, fault),) = bed.faults().items()
    assert (target, fault.loss) == ("t1:1.1", 0.2)
    page.run(
        "(() => { const slider = document.querySelector('#amount'); slider.value = 8;"
        "slider.dispatchEvent(new Event('input')); })()"
    )
    page.until("document.querySelector('#fault').textContent === 'loss 50%'")
    page.run("document.querySelector('#fabric').focus()")
    page.press("h")
    page.until("document.querySelector('#heal-all').disabled")
    assert bed.faults() == {}


def test_view__reads_links_of_three_tiers() -> None:
    shape: dict[str, Any] = {"hosts": 4, "planes": 1, "t0": 4, "t1": 2, "pods": 2, "t2": 2}
    with Testbed(f"view3-{os.getpid()}", **shape) as bed:
        drawn, _ = view_of(bed).read()
    ends = {link.target: (link.host, link.t0, link.t1, link.t2) for link in drawn.links}
    assert len(ends) == 4 + 4 + 4
    assert ends["link:h3.1"] == (3, 3, None, None)
    assert ends["uplink:1.2.1"] == (None, 2, 1, None)
    assert ends["core:1.1.0"] == (None, None, 1, 0)


@pytest.mark.slow
@needs_browser
def test_page__of_three_tiers_fails_a_t2(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"hosts": 8, "planes": 2, "t0": 4, "t1": 4, "pods": 2, "t2": 4}
    with (
        Testbed(f"view4-{os.getpid()}", **shape) as bed,
        viewing("testbed", "view", "--name", bed.name) as url,
        browser(tmp_path) as page,
    ):
        page.open(url)
        page.until("document.querySelector('.node[data-target=\"t2:2.3\"]')")
        tops = [
            page.run(f"document.querySelector('.node.{kind} rect').getAttribute('y') * 1")
            for kind in ("t2", "t1", "t0", "host")
        ]
        assert tops == sorted(set(tops))
        assert page.run("document.querySelectorAll('.link').length") == 2 * (8 + 8 + 8)
        page.click('.node[data-target="t2:2.3"] rect')
        page.until("document.querySelector('.node.fails[data-target=\"t2:2.3\"]')")
        assert [*bed.faults()] == ["t2:2.3"]
        page.until("document.querySelectorAll('.lane.silent').length === 4")  # 2 links, 2 lanes
        page.click("#heal")
        page.until("!document.querySelector('.node.fails')")
        assert page.complaints == []


@pytest.mark.slow
@needs_browser
def test_page__another_site_cannot_read_or_break(bed: Testbed, tmp_path: Path) -> None:
    """A page elsewhere that has the address: its requests, its frame and its form do nothing."""
    with viewing("testbed", "view", "--name", bed.name) as url, browser(tmp_path) as page:
        other = tmp_path / "other.html"
        other.write_text(f"<iframe src='{url}'></iframe><form method=post action='{url}change'>"
                         "<input name='{}'></form>")  # fmt: skip
        page.open(other.as_uri())
        change = json.dumps({"do": "fail", "target": "plane:1"})
        for mode in ("cors", "no-cors"):
            for kind in ("text/plain", "application/json"):
                outcome = page.run(
                    f"fetch('{url}change', {{method: 'POST', mode: '{mode}', body: '{change}',"
                    f"headers: {{'Content-Type': '{kind}'}}}}).then(a => a.type, e => 'refused')"
                )
                assert outcome in ("refused", "opaque")  # opaque: sent, and it cannot be read
        read = page.run(f"fetch('{url}').then(a => a.text(), e => 'refused')")
        assert read == "refused"
        listens = page.run(
            f"new Promise(done => {{ const s = new EventSource('{url}feed');"
            "s.onmessage = s.onopen = () => done('open'); s.onerror = () => done('refused'); })"
        )
        assert listens == "refused"
        assert any("frame-ancestors" in each for each in page.complaints)
        page.run("document.querySelector('form').submit()")
        page.until("document.readyState === 'complete'")
        assert bed.faults() == {}
