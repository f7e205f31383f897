# SPDX-License-Identifier: Apache-2.0
"""The page of a test bed: what it shows and changes, and in a browser, by clicks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from netns.processes import Hosts
from ports import free_port
from printed import printed
from slowness import PATIENCE

from mrc.testbed.bed import Testbed
from mrc.view.fabric import FabricChange, FabricView

from .conftest import bed_of, fresh_name

RATE_BPS = 100_000_000
BELOW, ABOVE = 3.3 * RATE_BPS, 3.5 * RATE_BPS  # of four planes: one fails, none fails


bed = bed_of(rate=str(RATE_BPS))


@pytest.mark.usefixtures("healed")
def test_view__reads_links_and_faults(bed: Testbed, hosts: Hosts) -> None:
    view = FabricView(bed.name)
    drawn, first = view.read()
    assert drawn.title.startswith("2 hosts, 4 planes") and drawn.planes == 4
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


# ---- A headless Chromium, over its DevTools protocol ---------------------------------------------


PROGRAM = "chromium"
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip


class Page:
    """One page. Complaints of its scripts collect in `complaints`, requests in `requests`."""

    def __init__(self, down: int, up: int) -> None:
        self._down, self._up = down, up
        self._buffer = b""
        self._count = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def open(self, url: str) -> None:
        if self._session is None:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=1280, height=1000, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        self.call("Page.navigate", url=url)

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """The result of a command of the protocol."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._down, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._count:
            self._note(answer)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            got = os.read(self._up, 1 << 16)
            assert got, "the browser has ended"
            self._buffer += got
        line, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(str(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.complaints.append(str(params["entry"]))
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    def run(self, script: str) -> Any:
        """The value of an expression, awaited."""
        done = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def until(self, script: str) -> None:
        """Waits until an expression is true."""
        deadline = time.monotonic() + PATIENCE
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < deadline, (script, self.complaints)
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """Clicks as a mouse does, in the middle of the element, or on the middle of a line."""
        where = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind, x=where[0], y=where[1], button="left", clickCount=1,
            )  # fmt: skip

    def press(self, key: str) -> None:
        """Presses a key on the element that has the focus."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A browser whose profile is in `folder`."""
    program = shutil.which(PROGRAM)
    assert program is not None
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    # Chromium reads commands from descriptor 3 and writes answers to descriptor 4.
    script = f'exec "$@" 3<&{in_read} 4>&{out_write}'
    argv = ["bash", "-c", script, "sh", program, *OPTIONS, f"--user-data-dir={folder / 'profile'}"]
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, pass_fds=(in_read, out_write))
    for each in (in_read, out_write):
        os.close(each)
    try:
        yield Page(in_write, out_read)
    finally:
        for each in (in_write, out_read):
            os.close(each)
        try:
            process.wait(PATIENCE)  # it ends with its pipe
        finally:
            process.kill()
            process.wait()


# ---- In a browser -------------------------------------------------------------------------------

needs_browser = pytest.mark.skipif(shutil.which(PROGRAM) is None, reason="apt-get install chromium")
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


@pytest.mark.slow
@needs_browser
def test_page__of_three_tiers_fails_a_t2(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"hosts": 8, "planes": 2, "t0": 4, "t1": 4, "pods": 2, "t2": 4}
    with (
        Testbed(fresh_name(), **shape) as bed,
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
