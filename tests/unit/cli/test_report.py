# SPDX-License-Identifier: Apache-2.0
"""What commands print of a transfer: results, files that were left out, planes, progress."""

from __future__ import annotations

import asyncio
import io
import math
import re
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from unit.transfer.test_session import PLANE

from mrc import ContextConfig
from mrc.cli import figures
from mrc.cli.figures import carried_percent, settings
from mrc.cli.main import main
from mrc.cli.output import Exit, Output
from mrc.config import Queues, Retries, Spraying
from mrc.connect.parse import printable
from mrc.enums import EventReason, EvState, WcStatus
from mrc.errors import MrcError, StateError
from mrc.events import (
    EventsLost,
    EvEvent,
    PlaneEvent,
    PlaneShareEvent,
    PortEvent,
    QpErrorEvent,
    QpEvent,
)
from mrc.results import plain
from mrc.transfer import account
from mrc.transfer.account import (
    MAX_NAMED,
    Account,
    OutageLog,
    PlaneCount,
    carried_bytes,
    payload_bytes,
)
from mrc.transfer.cli.report import (
    TransferReport,
    backup_lines,
    batch_lines,
    describe,
    failed_sentence,
    progress_line,
    sentence,
    waits_sentence,
)
from mrc.transfer.limits import FileError
from mrc.transfer.progress import Progress, Resumed
from mrc.transfer.results import FailedFile, Outage, Role, StoredBatch, Waits


def printing(
    role: Role = "receiver", *, quiet: bool = False, as_json: bool = False
) -> TransferReport:
    command = "mrc send" if role == "sender" else "mrc recv"
    return TransferReport(Output(command, as_json=as_json, quiet=quiet), role)


def of_transfer(role: Role = "receiver", host: str = "h0", limit: float = math.inf) -> Account:
    """A transfer that a command prints."""
    return Account(role, host, printing(role).take, limit=limit)


def test_batch_lines__counts_what_a_pack_has() -> None:
    pack = StoredBatch((), 1, 2, 2048, packed=True)
    assert batch_lines(pack, 1.0) == ["1 file, 2 folders  2 KiB  1 s  16.4 kbit/s"]
    (line,) = batch_lines(replace(pack, count=20, folders=1, links=1), 1.0)
    assert line.startswith("20 files, 1 folder, 1 link  ")


def test_settings__by_their_names_of_today() -> None:
    config = ContextConfig(
        queues=Queues(sq_depth=77), retries=Retries(ack_timeout_exponent=9),
        spraying=Spraying(burst_packets=3),
    )  # fmt: skip
    qp = Mock(peer=Mock(host="h1"), path_mtu=1024, mpr=2048)
    found = plain(settings(Mock(config=config, udp_port=4791), qp, tcp_port=7))
    keys = ("sq_depth", "ack_timeout_exponent", "burst_packets", "mpr")
    assert [found[key] for key in keys] == [77, 9, 3, 2048]


def test_waits_sentence__without_what_took_no_time() -> None:
    all_parts, two = Waits(0.001, 2.5, 0.25), Waits(0.0, 2.5, 0.25)
    sentence = "waited 1 ms for reading, 2.5 s for the network, 250 ms for storing"
    assert waits_sentence(all_parts) == sentence
    assert waits_sentence(two) == "waited 2.5 s for the network, 250 ms for storing"
    assert waits_sentence(Waits(0.0, 0.0, 0.0)) == ""


# ---- Files that are not copied -------------------------------------------------------------------


def test_left_out__one_line_for_one_cause(capsys: pytest.CaptureFixture[str]) -> None:
    """A folder whose name is refused may have thousands of files."""
    leaving = of_transfer("sender", "h1")
    hidden = [FailedFile(f"a/.git/{n}", "'a/.git': begins with '.'", "receiver") for n in range(9)]
    other = FailedFile("b", "b: exists", "receiver")
    for failed in (*hidden, other, hidden[0]):
        leaving.left_out(failed)
    assert capsys.readouterr().err.splitlines() == [
        "mrc send: not copied: h1: 'a/.git': begins with '.'",
        "mrc send: not copied: h1: b: exists",
    ]
    assert leaving._failed == [*hidden, other], "--json lists all"


@pytest.mark.parametrize(
    ("text", "line"),
    [("lost", "h0: lost"), ("h0 ended", "h0 ended"), ("h01 ended", "h0: h01 ended")],
)
def test_session_failed__names_the_peer_once(
    capsys: pytest.CaptureFixture[str], text: str, line: str
) -> None:
    out = Output("mrc recv", as_json=False, quiet=False)
    assert out.session_failed("h0", MrcError(text)) == Exit.FAILED
    assert capsys.readouterr().err == f"mrc recv: {line}\n"


def test_send__says_how_many_it_excludes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong pattern may match everything."""
    (tmp_path / "a.o").touch()
    words = ["send", "--insecure", "--exclude", "*", str(tmp_path), "127.0.0.1:1"]
    assert main(words) == Exit.UNREACHABLE
    assert "--exclude left out 1 of the files and folders" in capsys.readouterr().err


def test_left_out__counts_all_and_names_some(capsys: pytest.CaptureFixture[str]) -> None:
    leaving = of_transfer()
    for n in range(3 * MAX_NAMED):
        leaving.left_out(FailedFile(f"f{n}", f"f{n}: exists", "receiver"))
        leaving.left_out(FailedFile(f"f{n}", f"f{n}: exists", "receiver"))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(leaving._failed) == MAX_NAMED
    assert failed_sentence(MAX_NAMED) == "1000 files and folders were not copied"
    assert failed_sentence(3000) == (
        "3000 files and folders were not copied; the first 1000 are named"
    )
    assert leaving.failed_count == 3 * MAX_NAMED


@pytest.mark.more
def test_left_out__a_name_counts_once_however_many_there_are() -> None:
    """A pack that is sent again after a loss names its files again."""
    leaving = of_transfer()
    names = [f"f{n}" for n in range(3 << 16)]
    for name in (*names, *names, "another"):
        leaving.left_out(FailedFile(name, "exists", "receiver"))
    assert leaving.failed_count == len(names) + 1


def test_left_out__its_limit_holds_over_all_connections() -> None:
    leaving = of_transfer(limit=2)
    for name in ("a", "b", "a"):
        leaving.left_out(FailedFile(name, "exists", "receiver"))
    with pytest.raises(FileError, match="limit of 2 files and folders"):
        leaving.left_out(FailedFile("c", "exists", "receiver"))


def test_left_out__a_long_path_keeps_its_cause(capsys: pytest.CaptureFixture[str]) -> None:
    leaving = of_transfer()
    leaving.left_out(FailedFile("x", f"{'x' * 4000}: cannot be made: no space left", "receiver"))
    line = capsys.readouterr().err
    assert line.endswith(": cannot be made: no space left\n") and len(line) < 600


# ---- The planes on the way, from scripted events -------------------------------------------------


SILENT, BACK = EventReason.SILENCE, EventReason.PROBES


@pytest.mark.parametrize(
    ("outages", "text"),
    [
        ((), ""),
        ((Outage(2, 3.12, 5.04),), "plane 2 was lost at 3.1 s and was back at 5.0 s"),
        ((Outage(2, 3.12, 3.14),), "plane 2 was lost for 20 ms at 3.1 s"),
        ((Outage(2, 3.12, None),), "plane 2 was lost at 3.1 s and did not come back"),
        (
            (Outage(2, 1, 2), Outage(1, 1.5, 2.5), Outage(2, 3, 4), Outage(2, 1100, 2000)),
            "plane 2 was lost 3 times, first at 1.0 s and was back at 2000 s;"
            " plane 1 was lost at 1.5 s and was back at 2.5 s",
        ),
        (
            tuple(Outage(plane, plane, None) for plane in range(1, 7)),
            "; ".join(f"plane {n} was lost at {n}.0 s and did not come back" for n in range(1, 5))
            + "; also lost: 2 planes",
        ),
    ],
)
def test_sentence__of_outages(outages: tuple[Outage, ...], text: str) -> None:
    assert sentence(outages) == text


def test_outages__planes_that_were_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    start_ns = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: start_ns)

    def plane(number: int, seconds: float, *, suspended: bool) -> PlaneEvent:
        reason = SILENT if suspended else BACK
        return PlaneEvent(number, suspended, reason, start_ns + round(seconds * 1e9))

    events = (
        plane(3, 0.5, suspended=False),  # was lost before the transfer
        plane(2, 3.1, suspended=True),
        EvEvent(7, 2, "p2", EvState.ASSUMED_BAD, SILENT),
        plane(1, 4.0, suspended=True),
        plane(2, 5.0, suspended=False),
    )
    log = OutageLog()
    log.connected()
    for event in events:
        log.take(event)
    assert sentence(log.outages) == (
        "plane 2 was lost at 3.1 s and was back at 5.0 s;"
        " plane 1 was lost at 4.0 s and did not come back"
    )
    assert [each.plane for each in log.outages] == [2, 1]
    assert describe(events[1]).startswith("plane 2 is suspended: other planes delivered")


def test_outages__another_connection_after_a_loss() -> None:
    """Times go on from the first one, and a plane that carries data on the next one is back."""
    log = OutageLog()
    log.connected()
    for plane in (1, 2):
        log.take(PlaneEvent(plane, True, SILENT, time.monotonic_ns()))
    before = log.outages
    assert [each.back_at_seconds for each in before] == [None, None]
    log.connected({1, 3})
    back, lasting = log.outages
    assert (back.plane, back.lost_at_seconds) == (1, before[0].lost_at_seconds)
    assert back.back_at_seconds is not None and back.back_at_seconds > back.lost_at_seconds
    assert lasting == before[1]


@pytest.mark.parametrize(
    ("event", "part"),
    [
        (EvEvent(7, 2, "p2", EvState.ASSUMED_BAD, SILENT), "plane 2: EV p2 is ASSUMED_BAD: other"),
        (PlaneShareEvent(2, True, 9, EventReason.DELIVERY), "is slow: it carries 9% of the others"),
        (PortEvent(2, False, EventReason.OWN_PORT), "plane 2: port down: a port of this host"),
        (EventsLost(3), "missing here: 3 events"),
        (QpErrorEvent(WcStatus.RETRY_EXC_ERR), "the QP failed: no path"),
    ],
)
def test_describe__every_event(event: QpEvent, part: str) -> None:
    assert part in describe(event)


# ---- Bars ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plane:
    plane: int
    sent_bytes: int = 0
    lost: int = 0
    received_bytes: int = 0
    suspended: bool = False
    weight: int = 100


@dataclass(frozen=True)
class Info:
    acknowledged_bytes: int
    received_bytes: int
    planes: tuple[Plane, ...] = (Plane(1, 3, received_bytes=4), Plane(2, 5, received_bytes=6))
    retransmitted_packets: int = 0


class CountingSession:
    """Each query reports 100 more bytes sent and 1000 more received."""

    def __init__(self, answers: int) -> None:
        self.asked = 0
        self.enough = asyncio.Event()
        self.qp = self
        self.ctx = Mock(config=Mock(metrics=None))
        self._answers = answers

    async def events(self) -> AsyncIterator[QpEvent]:
        events: tuple[QpEvent, ...] = ()
        for event in events:
            yield event

    async def query(self) -> Info:
        self.asked += 1
        if self.asked >= self._answers:
            self.enough.set()
        return Info(100 * self.asked, 1000 * self.asked)


def connection(
    report: TransferReport, session: Any, size: int | None, host: str = "h1", *, there: int = 0
) -> AbstractAsyncContextManager[None]:
    """What a command prints of a transfer while the body runs."""
    return Account(report._role, host, report.take).connection(session, size, lambda: there)


def test_payload_bytes__of_each_end() -> None:
    info: Any = Info(3, 7)
    assert payload_bytes("sender", info) == 3
    assert payload_bytes("receiver", info) == 7


def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """The terminal on which a bar is drawn, without pauses."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    made = Terminal()
    monkeypatch.setattr("sys.stderr", made)
    monkeypatch.setattr(account, "PROGRESS_SECONDS", 0.0)
    return made


async def test_connection__qp_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(CountingSession):
        async def query(self) -> Info:
            self.enough.set()
            raise StateError("gone")

    terminal(monkeypatch)
    session = Gone(1)
    async with connection(printing("sender"), session, None):
        await session.enough.wait()


async def test_connection__nobody_asks_when_nobody_hears() -> None:
    session: Any = CountingSession(1)
    async with Account("sender", "h1", None).connection(session, None):
        await asyncio.sleep(0)
    assert session.asked == 0


@pytest.mark.parametrize("when", ["at once", "later"])
async def test_connection__an_error_of_the_user_ends_it(when: str) -> None:
    session: Any = CountingSession(1)

    def fail(progress: Progress) -> None:
        if (progress.event is None) is (when == "later"):
            raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        async with Account("sender", "h1", fail).connection(session, None):
            await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None and not task.cancelling() and len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("peer", ["[/]", "[bold]x", "\x1b[2J", "x" * 300, "\u202e"])
async def test_take__a_peer_cannot_touch_the_terminal(
    monkeypatch: pytest.MonkeyPatch, peer: str
) -> None:
    screen = terminal(monkeypatch)
    session, report = CountingSession(answers=3), printing()
    async with connection(report, session, 1 << 63, peer):
        await session.enough.wait()
        report.note("a line")
    shown = screen.getvalue()
    assert printable(peer)[:6] in shown
    assert "2/2 planes" in shown
    assert "\x1b[2J" not in shown and "\u202e" not in shown and "x" * 60 not in shown
    assert "a line" in shown


async def test_take__what_need_not_move_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    session = CountingSession(2)
    async with connection(printing("sender"), session, 1000, there=800):
        await session.enough.wait()
        await asyncio.sleep(0)
    assert "100%  " in screen.getvalue() and "1000 B of 1000 B" in screen.getvalue()


async def test_note_once__the_first_of_its_kind(capsys: pytest.CaptureFixture[str]) -> None:
    noting = printing()
    for text in ("", "one", "two"):
        noting.note_once(text)
    assert capsys.readouterr().err == "mrc recv: one\n"


@pytest.mark.parametrize("verbose", [True, False])
def test_detail__only_with_v(capsys: pytest.CaptureFixture[str], verbose: bool) -> None:
    out = Output("mrc test", as_json=False, quiet=False, verbose=verbose)
    TransferReport(out, "sender").detail("QP 0x1")
    assert ("QP 0x1" in capsys.readouterr().err) is verbose


@pytest.mark.parametrize("columns", [60, 80])
async def test_take__one_line_that_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    screen = terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", str(columns))
    session = CountingSession(answers=4)
    async with connection(printing("sender"), session, 1 << 40, "a-host-with-a-long-name.example"):
        await session.enough.wait()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    assert lines and all(line.startswith("  0%  ") for line in lines), "none continues another"
    assert all("2/2" in line and len(line) < columns for line in lines)


@pytest.mark.parametrize(
    ("there", "said"),
    [(4096, "a: goes on behind 4 KiB of an earlier"), (8192, "a: was there with the same 8 KiB")],
)
def test_resumed__part_of_a_file_or_all(there: int, said: str) -> None:
    """A file that has only another mode or date has all its bytes there."""
    assert said in str(Resumed("a", there, 8192))


# ---- The line of a running transfer --------------------------------------------------------------


def moved(done: int, size: int | None, rate: float, planes: int = 4) -> Progress:
    return Progress(
        transfer=1, host="h1", done_bytes=done, bytes=size, rate_bits_per_second=rate,
        planes=planes, working_planes=planes,
    )  # fmt: skip


MOVED = moved(1_950_000_000, 4 << 30, 480e6)


@pytest.mark.parametrize(
    ("title", "width", "begins", "ends"),
    [
        ("to h1", 120, " 45%  ━━━━━━━━━━━━━─────────────────  1.82 GiB of 4 GiB", "to h1"),
        ("to h1", 80, " 45%  ━━━━━─",
         "1.82 GiB of 4 GiB   480 Mbit/s  ETA 0:39  4/4 planes  to h1"),
        ("to a-host-with-a-long-name.example", 60,
         " 45%  1.82 GiB of 4 GiB   480 Mbit/s  ETA 0:39  4/4 planes", ""),
    ],
)  # fmt: skip
def test_progress_line__at_a_width(title: str, width: int, begins: str, ends: str) -> None:
    line = progress_line(MOVED, title, width)
    assert line.startswith(begins) and line.endswith(ends) and len(line) <= width


def test_progress_line__while_nothing_can_move() -> None:
    waiting = replace(MOVED, done_bytes=0, waiting=True)
    assert progress_line(waiting, "to h1", 80) == "waiting for h1 to accept"
    assert progress_line(waiting, "to h1", 10) == "waiting fo"


@pytest.mark.parametrize("width", [*range(1, 130, 7), 60, 80])
@pytest.mark.parametrize("title", ["to h1", "x" * 48, "", "写真" * 24])
@pytest.mark.parametrize(
    "progress",
    [
        MOVED,
        moved(1023 << 20, 1023 << 30, 1.0, 16),
        replace(MOVED, bytes=None),
        replace(MOVED, rate_bits_per_second=0.0),
        replace(MOVED, done_bytes=5 << 30),
        moved(0, 0, 1.0),
        moved(1, 1 << 63, 999.9e9),
        replace(MOVED, planes=0),
        replace(MOVED, host="写真", waiting=True),
    ],
)
def test_progress_line__never_wraps(progress: Progress, title: str, width: int) -> None:
    """Some characters take two columns."""
    assert cell_len(progress_line(progress, title, width)) <= width


@pytest.mark.parametrize("width", [59, 79])
def test_progress_line__the_worst_numbers_keep_the_planes(width: int) -> None:
    worst = moved(1023 << 20, 1023 << 30, 999e6, 16)
    line = progress_line(worst, "from h1", width)
    assert "1023 MiB of 1023 GiB   999 Mbit/s  ETA 2:26:" in line
    assert "16/16" in line


@pytest.mark.parametrize(
    ("done", "rate", "text"),
    [
        (0, 8e6, "ETA 8:44"),
        (0, 8e4, "ETA 14:33:49"),
        (0, 8e2, "ETA -:--"),
        (0, 0.0, "ETA -:--"),
        (500 << 20, 8e6, "ETA 0:00"),
        (600 << 20, 8e6, "ETA 0:00"),
    ],
)
def test_progress_line__time_left(done: int, rate: float, text: str) -> None:
    assert text in progress_line(moved(done, 500 << 20, rate, 0), "", 80)


def test_plane_count__suspended_and_silent_planes_are_lost() -> None:
    planes: Any = [Plane(1), Plane(2), Plane(3)]
    count = PlaneCount()
    assert count.working({1: 0, 2: 0, 3: 0}, planes, 10.0) == 3
    assert count.working({1: 5, 2: 5, 3: 5}, planes, 10.2) == 3
    assert count.working({1: 9, 2: 5, 3: 9}, planes, 11.0) == 3, "silent for less than a second"
    assert count.working({1: 12, 2: 5, 3: 12}, planes, 11.4) == 2
    assert count.working({1: 13, 2: 6, 3: 13}, planes, 11.6) == 3
    assert count.working({1: 13, 2: 6, 3: 13}, planes, 30.0) == 3, "nothing to carry"
    planes[0] = Plane(1, suspended=True)
    assert count.working({1: 13, 2: 6, 3: 13}, planes, 30.2) == 2
    planes[2] = Plane(3, weight=0)
    assert count.working({1: 13, 2: 9, 3: 13}, planes, 40.0) == 2, "backups may be silent"


def test_backup_lines__name_the_interface_and_what_it_carried() -> None:
    planes: Any = [Plane(1), Plane(2, weight=0), Plane(3, weight=0), Plane(4, weight=50)]
    evs: Any = [Mock(plane=2, path="wwan0>10.0.2.2#1", usids=())]
    lines = list(backup_lines(planes, evs, {1: 9, 2: 0, 3: 2048, 4: 0}))
    assert lines == [
        ("plane 2 (wwan0): backup, not used", False),
        ("plane 3: backup, carried 2 KiB", True),
    ]


# ---- Shares of planes ----------------------------------------------------------------------------


MIB = 1 << 20


@pytest.mark.parametrize(
    ("moved", "percents"),
    [
        ({1: 100, 2: 9, 3: 100, 4: 100}, {1: 144, 2: 9, 3: 144, 4: 144}),
        ({1: 300, 2: 30}, {1: 1000, 2: 10}),
        ({1: 5, 2: 5}, {1: 100, 2: 100}),
        ({1: 5, 2: 0}, {1: None, 2: 0}),
        ({1: 0, 2: 0}, {1: None, 2: None}),
        ({3: 7}, {3: 100}),
        ({}, {}),
    ],
)
def test_carried_percent__of_the_mean_of_the_others(
    moved: dict[int, int], percents: dict[int, int | None]
) -> None:
    assert carried_percent(moved) == percents


@pytest.mark.parametrize(
    ("moved_mib", "said"),
    [
        ((80, 7, 80, 80), "plane 2 carried 9% of the others"),
        ((80, 7, 80, 11), "plane 2 carried 12% of the others, plane 4 20%"),
        ((58, 6), "plane 2 carried 10% of the others"),
        ((58, 6, 0), "plane 2 carried 10% of the others"),  # plane 3 was down
        ((80, 0, 80, 80), ""),
        ((57, 6), ""),  # too little in all
        ((80, 40, 80, 80), ""),  # half is not less than half
        ((80, 80, 80, 80), ""),
        ((90,), ""),
        ((9, 7, 3, 6, 6, 6, 6, 6, 6, 6, 6), ""),  # others have too little to compare with
    ],
)
def test_sentence__of_planes_below_half(moved_mib: tuple[int, ...], said: str) -> None:
    assert figures.sentence({plane: mib * MIB for plane, mib in enumerate(moved_mib, 1)}) == said


def test_sentence__a_lost_plane_is_not_slow() -> None:
    moved = {1: 80 * MIB, 2: 30 * MIB, 3: 7 * MIB}
    assert figures.sentence(moved, lost={2}) == "plane 3 carried 9% of the others"
    assert figures.sentence(moved, lost={2, 3}) == ""


def test_sentence__of_what_each_end_saw() -> None:
    planes = [
        replace(PLANE, plane=plane, sent_bytes=sent * MIB, received_bytes=received * MIB)
        for plane, sent, received in ((1, 90, 8), (2, 9, 80))
    ]
    sent, received = carried_bytes("sender", planes), carried_bytes("receiver", planes)
    assert figures.sentence(sent) == "plane 2 carried 10% of the others"
    assert figures.sentence(received) == "plane 1 carried 10% of the others"


@pytest.mark.parametrize(("quiet", "said"), [(False, "mrc send: plane 2\n"), (True, "")])
def test_note__on_stderr_unless_quiet(
    quiet: bool, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    noting = printing("sender", quiet=quiet, as_json=True)
    noting.note("")
    noting.note("plane 2")
    assert capsys.readouterr() == ("", said)
