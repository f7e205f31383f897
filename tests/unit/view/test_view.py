# SPDX-License-Identifier: Apache-2.0
"""The page: its server over real connections, its files, its feed, its changes, and attacks; and
the transfers that it makes of snapshots.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from endpoints import SNAPSHOT
from project_text import ROOT
from slowness import PATIENCE

from mrc.cli.main import main
from mrc.cli.top import LocalEndpoints, Unanswered, checked
from mrc.errors import MrcError, StateError
from mrc.observe.snapshot import Snapshot
from mrc.view import cli as view_cli
from mrc.view.fabric import FabricChange, FabricView
from mrc.view.feed import (
    MAX_PAGES,
    BedDrawing,
    FabricFault,
    FabricLink,
    LinkLoads,
    PageFeed,
    PageTransfer,
    Transfers,
)
from mrc.view.server import HEADERS, new_token, refusal, served

PAGE = ROOT / "mrc" / "view" / "page"
DRAWN = BedDrawing(
    "lab", "two hosts", 1, (FabricLink("link:h0.1", 1, 0, 0, None, None, "u", "d", (9, 9)),), False
)


class Bed(FabricView):
    """A test bed that is not there."""

    def __init__(self) -> None:
        super().__init__("lab")
        self.changes: list[FabricChange] = []
        self.faults: dict[str, FabricFault] = {}
        self.reads = 0
        self.problem: MrcError | None = None
        self.silent: tuple[Unanswered, ...] = ()

    def read(self) -> tuple[BedDrawing, LinkLoads]:
        self.reads += 1
        if self.problem:
            raise self.problem
        return DRAWN, LinkLoads(self.reads, 0.1, (8, 0), {}, {}, {}, {}, {}, {}, (), self.faults)

    def change(self, change: FabricChange) -> None:
        if change.target == "plane:9":
            raise StateError("no plane 9")
        self.changes.append(change)
        self.faults = {change.target: FabricFault("silent", "silent", 1.0, None, 0, None)}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Site(NamedTuple):
    """A running server."""

    url: str
    bed: Bed
    looks: list[int]

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def token(self) -> str:
        return urlsplit(self.url).path

    async def ask(self, path: str = "", method: str = "GET", body: object = None,
                  **headers: str) -> Answer:  # fmt: skip
        """One request; a path that begins with / has no token."""
        target = path if path.startswith("/") else self.token + path
        sent = b"" if body is None else json.dumps(body).encode()
        fields = {"Host": f"127.0.0.1:{self.port}", "Connection": "close"}
        if body is not None:
            fields |= {"Content-Type": "application/json", "Content-Length": str(len(sent))}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + sent)
        async with asyncio.timeout(PATIENCE):
            answer = await reader.read()
        writer.close()
        return answered(answer)

    async def change(self, change: object, **headers: str) -> Answer:
        return await self.ask("change", "POST", change, **headers)


def answered(answer: bytes) -> Answer:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return Answer(int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    bed, looks = Bed(), list[int]()

    async def look() -> LocalEndpoints:
        looks.append(1)
        return LocalEndpoints({"s": checked(SNAPSHOT)}, bed.silent)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with served(PageFeed(look, bed), listener) as url:
            yield Site(url, bed, looks)


async def events(site: Site, *wanted: str) -> dict[str, str]:
    """Opens the feed until each of these events has come; the last data of each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(f"GET {site.token}feed HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    found: dict[str, str] = {}
    text = ""
    async with asyncio.timeout(PATIENCE):
        while not found.keys() >= set(wanted):
            text += (await reader.read(1 << 16)).decode()
            found |= dict(re.findall(r"event: (\w+)\ndata: (.*)\n\n", text))
    writer.close()
    await writer.wait_closed()
    return found


async def others_end() -> None:
    """Waits until all tasks but this one have ended: those that read, and those that answer."""
    current = asyncio.current_task()
    others = [task for task in asyncio.all_tasks() if task is not current]
    _, left = await asyncio.wait(others, timeout=PATIENCE) if others else ((), ())
    assert not left


# ---- the page ------------------------------------------------------------------------------------


async def test_page__has_its_files_with_all_headers(site: Site) -> None:
    types = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg"}
    for path in [*sorted(PAGE.iterdir()), None]:
        found = await site.ask("" if path is None else path.name)
        assert found.status == 200
        assert found.body == (path or PAGE / "index.html").read_bytes()
        assert types[(path or PAGE / "index.html").suffix[1:]] in found.headers["Content-Type"]
        assert found.headers.items() >= HEADERS.items()
        assert "Server" not in found.headers


def test_page__names_only_its_own_files() -> None:
    """The page loads nothing from elsewhere; its browser test sees that nothing is asked for."""
    for path in PAGE.iterdir():
        text = path.read_text()
        assert set(re.findall(r"https?://[\w.]+", text)) <= {"http://www.w3.org"}, path
        for name in re.findall(r"(?:src|href|from)=?\s?\"(?:\./)?([\w.-]+)\"", text):
            assert (PAGE / name).exists(), (path, name)


async def test_feed__tells_of_bed_links_and_endpoints(site: Site) -> None:
    found = await events(site, "bed", "links", "endpoints")
    assert json.loads(found["bed"])["links"][0]["target"] == "link:h0.1"
    assert json.loads(found["links"])["rates_bps"] == [8, 0]
    (transfer,) = json.loads(found["endpoints"])["transfers"]
    assert (transfer["source"], transfer["destination"]) == ("h0", "h1")


async def test_feed__nothing_is_read_without_a_page(site: Site) -> None:
    """Nothing before a page opens, and nothing after the last one has closed."""
    assert (site.bed.reads, site.looks) == (0, [])
    await events(site, "links", "endpoints")
    await others_end()
    assert site.bed.reads > 0 and site.looks


async def test_feed__names_endpoints_that_do_not_answer(site: Site) -> None:
    site.bed.silent = (Unanswered(pid=7, program="mrc", error="no answer in 5 s"),)
    found = json.loads((await events(site, "problem"))["problem"])
    assert found == {"source": "endpoints", "text": "mrc, pid 7: no answer in 5 s"}


async def test_feed__tells_of_a_problem_and_of_its_end(site: Site) -> None:
    site.bed.problem = StateError("test bed lab is not up")
    found = await events(site, "problem")
    assert json.loads(found["problem"]) == {"source": "links", "text": "test bed lab is not up"}
    site.bed.problem = None
    over = await events(site, "bed", "links")
    assert "problem" not in over or json.loads(over["problem"])["text"] == ""


async def test_feed__pages_are_limited(site: Site) -> None:
    connections = []
    for _ in range(MAX_PAGES):
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(f"GET {site.token}feed HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert b"200" in await reader.readline()
        connections.append(writer)
    assert (await site.ask("feed")).status == 503
    for writer in connections:
        writer.close()


async def test_change__fails_and_heals(site: Site) -> None:
    assert (await site.change({"do": "fail", "target": "plane:1", "loss": 0.2})).status == 204
    assert (await site.change({"do": "heal", "target": "all"})).status == 204
    assert site.bed.changes == [
        FabricChange("fail", "plane:1", loss=0.2),
        FabricChange("heal", "all"),
    ]
    assert "plane:1" in (await events(site, "links"))["links"] or site.bed.faults


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"do": "fail", "target": "plane:9"}, "no plane 9"),
        ({"do": "explode", "target": "plane:1"}, 'must be "fail" or "heal"'),
        ({"do": "fail"}, "target: is missing"),
        ({"do": "fail", "target": "plane:1", "loss": 2}, "from 0 to 1"),
        ({"do": "fail", "target": "x" * 65}, "target"),
        ({"do": "fail", "target": "plane:1", "shell": "rm"}, "shell"),
        ([], "a table"),
    ],
)
async def test_change__says_why_it_was_refused(site: Site, change: object, reason: str) -> None:
    answer = await site.change(change)
    assert answer.status == 409
    assert reason in json.loads(answer.body)["error"]
    assert site.bed.changes == []


# ---- attacks -------------------------------------------------------------------------------------

BREAK = {"do": "fail", "target": "plane:1"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Host": "evil.example"}, 421), ({"Origin": "null"}, 403), ({"Content_Type": "x/y"}, 415)],
)
async def test_attack__another_site_changes_nothing(
    site: Site, headers: dict[str, str], status: int
) -> None:
    """Even if it has the token."""
    answer = await site.change(BREAK, **headers)
    assert (answer.status, site.bed.changes) == (status, [])
    assert answer.headers.items() >= HEADERS.items()


@pytest.mark.parametrize("path", ["", "feed", "main.js", "index.html"])
async def test_attack__another_site_reads_nothing(site: Site, path: str) -> None:
    answer = await site.ask(path, Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="script")
    assert answer.status == 403 and b"mrc" not in answer.body
    assert (site.bed.reads, site.looks) == (0, [])


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("name", ["", "feed", "change", "main.js"])
async def test_attack__without_the_token(site: Site, name: str, method: str) -> None:
    """Another user of this machine, or a site that found the port."""
    for prefix in ("/", "/wrong/", f"{site.token[:-2]}/", site.token.swapcase()):
        answer = await site.ask(prefix + name, method, BREAK if method == "POST" else None)
        assert answer.status in (404, 405), (prefix, name)
    assert (site.bed.changes, site.bed.reads) == ([], 0)


async def test_attack__a_preflight_gets_no_permission(site: Site) -> None:
    answer = await site.ask(
        "change", "OPTIONS", Origin="http://evil.example", Access_Control_Request_Method="POST"
    )
    assert answer.status in (403, 405)
    assert not any(name.startswith("Access-Control-") for name in answer.headers)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD", "PATCH"])
async def test_attack__other_methods_change_nothing(site: Site, method: str) -> None:
    answer = await site.ask("change", method, BREAK)
    assert answer.status in (404, 405) and site.bed.changes == []


@pytest.mark.parametrize(
    "path",
    ["../server.py", "..%2fserver.py", "%2e%2e/server.py", "x/../../fabric.py", "/etc/passwd"],
)
async def test_attack__no_path_leads_to_other_files(site: Site, path: str) -> None:
    answer = await site.ask(path)
    assert answer.status == 404 and b"import" not in answer.body and b"root" not in answer.body


async def test_attack__large_requests_are_refused(site: Site) -> None:
    with suppress(ConnectionResetError):  # the server does not read it to its end
        answer = await site.ask("change", "POST", {"do": "fail", "target": "x" * 100_000})
        assert answer.status in (400, 413)
    assert site.bed.changes == []


async def test_attack__no_answer_names_the_token(site: Site) -> None:
    """A site that gets to see an error page, a redirect or a log learns nothing."""
    token = site.token.strip("/")
    for path, headers in (("", {"Host": "evil.example"}), ("nothing", {}), ("/", {})):
        answer = await site.ask(path, **headers)
        assert token not in str(answer)


async def test_served__ends_while_a_page_is_open(caplog: pytest.LogCaptureFixture) -> None:
    async def look() -> LocalEndpoints:
        return LocalEndpoints({})

    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with served(PageFeed(look, Bed()), listener) as url:
            where = urlsplit(url)
            reader, writer = await asyncio.open_connection("127.0.0.1", where.port)
            writer.write(f"GET {where.path}feed HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            await reader.readuntil(b"event: links")
    await reader.read()
    await others_end()
    writer.close()
    assert not caplog.records


# ---- Which requests get an answer ----------------------------------------------------------------

OURS = {"Host": "127.0.0.1:8000"}
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
MISDIRECTED, MISSING = HTTPStatus.MISDIRECTED_REQUEST, HTTPStatus.NOT_FOUND
FORBIDDEN, WRONG_TYPE = HTTPStatus.FORBIDDEN, HTTPStatus.UNSUPPORTED_MEDIA_TYPE


@pytest.mark.parametrize(
    ("method", "headers", "refused"),
    [
        # the page itself, and the user
        ("GET", OURS, None),
        ("GET", {"Host": "localhost:8000"}, None),
        ("GET", {"Host": "[::1]:8000"}, None),
        ("GET", OURS | {"Sec-Fetch-Site": "none", "Sec-Fetch-Dest": "document"}, None),
        ("GET", OURS | {"Sec-Fetch-Site": "same-origin"}, None),
        ("GET", OURS | {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}, None),
        ("POST", OURS | JSON, None),
        ("POST", OURS | JSON | {"Origin": "http://127.0.0.1:8000"}, None),
        # DNS rebinding
        ("GET", {"Host": "evil.example:8000"}, MISDIRECTED),
        ("GET", {"Host": "localhost.evil.example"}, MISDIRECTED),
        ("GET", {"Host": "192.0.2.1:8000"}, MISDIRECTED),
        ("GET", {}, MISDIRECTED),
        # another site that has the token
        ("POST", OURS | JSON | {"Origin": "http://evil.example"}, FORBIDDEN),
        ("POST", OURS | JSON | {"Origin": "null"}, FORBIDDEN),
        ("POST", OURS | JSON | {"Origin": "https://127.0.0.1:8000"}, FORBIDDEN),
        ("POST", OURS | JSON | {"Origin": "http://127.0.0.1:9000"}, FORBIDDEN),
        ("POST", OURS | JSON | {"Sec-Fetch-Site": "cross-site"}, FORBIDDEN),
        ("GET", OURS | {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "script"}, FORBIDDEN),
        ("GET", OURS | {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe"}, FORBIDDEN),
        ("GET", OURS | {"Sec-Fetch-Site": "cross-site"}, FORBIDDEN),
        ("POST", OURS | JSON | {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"},
         FORBIDDEN),
        # its form, which no browser asks about before
        ("POST", OURS | FORM, WRONG_TYPE),
        ("POST", OURS | {"Content-Type": "text/plain"}, WRONG_TYPE),
        ("POST", OURS, WRONG_TYPE),
    ],
)  # fmt: skip
def test_refusal__of_others(
    method: str, headers: dict[str, str], refused: HTTPStatus | None
) -> None:
    assert refusal(method, headers, "right", "right") == refused
    assert refusal(method, headers, "wrong", "right") in (MISSING, MISDIRECTED)


@pytest.mark.parametrize("token", ["", "righ", "rights", "RIGHT", "r\u00efght"])
def test_refusal__without_the_token(token: str) -> None:
    assert refusal("GET", OURS, token, "right") == MISSING


def test_new_token__is_long_and_new() -> None:
    tokens = {new_token() for _ in range(8)}
    assert len(tokens) == 8 and all(len(token) >= 32 for token in tokens)


def test_headers__keep_other_sites_out() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "*" not in policy and "http:" not in policy
    assert not any(name.startswith("Access-Control-") for name in HEADERS)


# ---- Without a page ------------------------------------------------------------------------------
#
# What `mrc testbed view` and `mrc top --web` say when there can be no page.


COMMANDS = (["testbed", "view"], ["top", "--web", "--local"])


@pytest.mark.parametrize("command", COMMANDS)
def test_listener__without_the_extra(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(view_cli, "find_spec", lambda _: None)
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("the page requires tornado: pip install 'mrc-transport[view]'")


@pytest.mark.parametrize("command", COMMANDS)
def test_listener__its_port_is_in_use(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main([*command, "--port", str(port)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"TCP port {port} is in use: choose another --port")


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_listener__of_no_port(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["testbed", "view", "--port", port]) == 2
    assert "--port" in capsys.readouterr().err


def test_listener__is_on_loopback_only() -> None:
    with view_cli.listener("mrc", 0) as found:
        assert found.getsockname()[0] == "127.0.0.1"


def test_top__one_look_is_no_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--web", "--local", "--once"]) == 2
    assert "--once: not with --web" in capsys.readouterr().err


def test_view__of_no_test_bed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MRC_RUN_DIR", str(tmp_path))
    assert main(["testbed", "view", "--name", "gone"]) == 1
    assert "test bed gone is not up: mrc testbed up --name gone" in capsys.readouterr().err


# ---- Transfers -----------------------------------------------------------------------------------


TENTH = 100_000_000  # ns


def snapshot(turn: int, *, host: str = "h0", outstanding: int = 1, **qp: Any) -> Snapshot:
    """The endpoint after `turn` tenths of a second."""
    found = copy.deepcopy(SNAPSHOT) | {"host": host, "monotonic_ns": 10**9 + turn * TENTH}
    peer = "h1" if host == "h0" else "h0"
    found["qps"][0] |= {"peer": peer, "outstanding": outstanding} | qp
    return checked(found)


def follow(steps: Sequence[tuple[int, int]]) -> list[PageTransfer]:
    """What is shown of a sender for each step: bytes that are acknowledged, and posted writes."""
    transfers = Transfers()
    return [
        transfers.take(
            {"s": snapshot(turn, acknowledged_bytes=1000 * moved, outstanding=outstanding)}
        )[0]
        for turn, (moved, outstanding) in enumerate(steps)
    ]


def test_take__goodput_of_the_interval() -> None:
    first, second, third = follow([(1, 1), (11, 1), (11, 1)])
    assert (first.bits_per_second, second.bits_per_second) == (0, 800_000)
    assert third.bits_per_second == 0
    assert (second.source, second.destination, second.program) == ("h0", "h1", "mrc send")
    assert (second.bytes, second.seen_at) == (11_000, "source")


def test_take__longest_gap() -> None:
    """Bytes, posted writes and the longest gap so far, in tenths of a second."""
    rows = [
        (1, 1, 0),
        (2, 1, 0),
        (2, 1, 1),  # one interval without progress
        (2, 1, 2),
        (3, 1, 2),
        (3, 1, 2),  # a shorter gap
        (4, 0, 2),
        (4, 0, 2),  # nothing to send is no gap
        (4, 0, 2),
        (4, 0, 2),
        (4, 1, 2),
        (5, 1, 2),
    ]
    found = follow([(moved, outstanding) for moved, outstanding, _ in rows])
    assert [each.longest_gap_ns / TENTH for each in found] == [gap for _, _, gap in rows]


def test_take__a_gap_at_a_receiver_counts_once_it_is_over() -> None:
    transfers = Transfers()
    gaps = []
    for turn, moved in enumerate([1, 2, 2, 2, 3, 3]):
        seen = snapshot(turn, host="h1", outstanding=0, acknowledged_bytes=0, received_bytes=moved)
        (found,) = transfers.take({"r": seen})
        gaps.append(found.longest_gap_ns / TENTH)
        assert (found.source, found.destination, found.seen_at) == ("h0", "h1", "destination")
    assert gaps == [0, 0, 0, 0, 2, 2]


def test_take__a_transfer_is_listed_once() -> None:
    """Its sender knows more of it than its receiver."""
    sender = snapshot(0, acknowledged_bytes=5)
    receiver = snapshot(0, host="h1", outstanding=0, acknowledged_bytes=0, received_bytes=5)
    (found,) = Transfers().take({"r": receiver, "s": sender})
    assert found.seen_at == "source"


def test_take__an_idle_qp_is_no_transfer() -> None:
    assert Transfers().take({"s": snapshot(0, outstanding=0, acknowledged_bytes=0)}) == ()


def test_take__planes_and_evs() -> None:
    transfers = Transfers()
    transfers.take({"s": snapshot(0)})
    later = snapshot(1)
    qp = later.qps[0]
    (found,) = transfers.take({"s": later})
    (plane,) = found.planes
    (ev,) = found.evs
    assert plane.suspended and plane.plane == qp.planes[0].plane
    assert (ev.path, ev.state, ev.active, ev.lost_packets) == ("t1:1.0", "ASSUMED_BAD", True, 1)


def test_take__forgets_what_is_gone() -> None:
    """An endpoint that comes again begins anew."""
    transfers = Transfers()
    transfers.take({"s": snapshot(0, acknowledged_bytes=9000)})
    assert transfers.take({}) == ()
    (found,) = transfers.take({"s": snapshot(9, acknowledged_bytes=10)})
    assert found.bits_per_second == 0
