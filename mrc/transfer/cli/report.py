# SPDX-License-Identifier: Apache-2.0
"""What mrc send and mrc recv print of a transfer: bars on the terminal, lines, lost planes, files
that were left out, the result as JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from rich.cells import cell_len, set_cell_size

from mrc import versions
from mrc.aio.context import Context
from mrc.cli import endpoint, figures
from mrc.cli.output import Exit, Output
from mrc.connect.parse import printable, shown
from mrc.connect.retry import Trying
from mrc.enums import WarningKind
from mrc.events import (
    EventsLost,
    EvEvent,
    EvInfo,
    PlaneEvent,
    PlaneInfo,
    PlaneShareEvent,
    PortEvent,
    QpErrorEvent,
    QpEvent,
)
from mrc.transfer.account import MAX_NAMED, carried_bytes
from mrc.transfer.messages import MAX_ERROR, shortened
from mrc.transfer.progress import (
    Connected,
    Disconnected,
    Grew,
    Kept,
    Progress,
    Resumable,
    Resumed,
    TransferPlanned,
    Unchanged,
    Waiting,
)
from mrc.transfer.results import (
    MAX_LISTED,
    FailedFile,
    Outage,
    Role,
    StoredBatch,
    Transfer,
    Waits,
    sent_bytes,
)
from mrc.units import counted, scaled

if TYPE_CHECKING:
    from rich.progress import TaskID

MANY_OVERFLOWS = 100  # packets; fewer cost no speed


def backup_lines(
    planes: Sequence[PlaneInfo], evs: Sequence[EvInfo], carried: Mapping[int, int]
) -> Iterator[tuple[str, bool]]:
    """A line about each backup, and whether it was used: "plane 2 (wwan0): backup, not used"."""
    nics = {ev.plane: ev.path.partition(">")[0] for ev in evs if not ev.usids}
    for plane in planes:
        if plane.weight == 0:
            nic, used = nics.get(plane.plane), carried[plane.plane]
            name = f"plane {plane.plane}" + (f" ({nic})" if nic else "")
            did = f"carried {scaled(used, 'B')}" if used else "not used"
            yield f"{name}: backup, {did}", used > 0


def overflow(ctx: Context, counters: Mapping[str, int]) -> str:
    """A sentence when packets were lost because the kernel limits the receive buffer; or ""."""
    count = counters.get("RX_OVERFLOW", 0)
    small = any(warning.kind is WarningKind.RCVBUF_SMALL for warning in ctx.warnings)
    if not small or count < MANY_OVERFLOWS:
        return ""
    lost = counted(count, "packet")
    return f"{lost} did not fit the receive buffer: mrc doctor shows how to enlarge it"


def waits_sentence(waits: Waits) -> str:
    """Which part of the transfer held the others up."""
    parts = (
        ("reading", waits.reading_seconds),
        ("the network", waits.network_seconds),
        ("storing", waits.storing_seconds),
    )
    told = ", ".join(f"{scaled(seconds, 's')} for {part}" for part, seconds in parts if seconds)
    return f"waited {told}" if told else ""


def batch_lines(batch: StoredBatch, seconds: float) -> list[str]:
    """A line about each file, stored and verified; of a pack of many files one about all."""
    rate = f"  {scaled(sent_bytes(batch) * 8 / seconds, 'bit/s')}" if seconds > 0 else ""
    times = f"  {scaled(seconds, 's')}{rate}"
    if batch.packed and (batch.folders or batch.count > MAX_LISTED):
        counts = [counted(batch.count, "file"), counted(batch.folders, "folder")]
        counts += [counted(batch.links, "link")] * (batch.links > 0)
        return [f"{', '.join(counts)}  {scaled(batch.bytes, 'B')}{times}"]
    return [
        f"{printable(file.path)}  {scaled(file.bytes, 'B')}{'' if batch.packed else times}"
        f"  {versions.DIGEST}:{file.digest}"
        for file in batch.files
    ]


# ---- Bars on the terminal ------------------------------------------------------------------------


MAX_TITLE = 48  # characters of a bar's title


class _Bars:
    """The bars of all running transfers, on stderr."""

    def __init__(self) -> None:
        # Without a terminal, the command starts without all of this.
        from rich.console import Console
        from rich.progress import Progress, TextColumn
        from rich.table import Column

        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            console=self._console,
            transient=True,
            auto_refresh=False,
        )
        self._tasks: dict[int, TaskID] = {}  # by the number of the transfer

    def update(self, progress: Progress, title: str) -> None:
        """Draws the bar of a transfer."""
        if not self._tasks:
            self._progress.start()
        if progress.transfer not in self._tasks:
            self._tasks[progress.transfer] = self._progress.add_task("", total=None)
        line = progress_line(progress, title, self._console.width - 1)
        self._progress.update(self._tasks[progress.transfer], description=line)
        self._progress.refresh()

    def hide(self) -> None:
        """Removes the bars from the terminal until `show`, so that lines can be printed."""
        if self._tasks:
            self._progress.stop()

    def show(self) -> None:
        if self._tasks:
            self._progress.start()

    def remove(self, transfer: int) -> None:
        """Removes the bar of a transfer, if it has one."""
        if (task := self._tasks.pop(transfer, None)) is not None:
            self._progress.remove_task(task)
            if not self._tasks:
                self._progress.stop()

    def end(self) -> None:
        for transfer in list(self._tasks):
            self.remove(transfer)


class TransferReport:
    """Prints what becomes of transfers: `take` is their `on_progress`. Without a terminal there are
    only results and notes. A context manager, whose end removes the bars.
    """

    def __init__(self, out: Output, role: Role) -> None:
        self.out = out
        self._role = role
        self._noted = False
        self._last = (0, "")  # transfer and line of the last file that was not copied
        self._bars = _Bars() if sys.stderr.isatty() and not out.quiet else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._bars is not None:
            self._bars.end()

    @contextmanager
    def lines(self) -> Iterator[None]:
        """Hides the bars while the body prints lines."""
        if self._bars is not None:
            self._bars.hide()
        try:
            yield
        finally:
            if self._bars is not None:
                self._bars.show()

    def text(self, text: str) -> None:
        """Prints a result above the bars."""
        with self.lines():
            self.out.text(text)

    def note(self, text: str) -> None:
        """Prints a note above the bars; an empty text prints nothing."""
        if text:
            with self.lines():
                self.out.note(text)

    def note_once(self, text: str) -> None:
        """Prints only the first note of this kind."""
        if text and not self._noted:
            self._noted = True
            self.note(text)

    def detail(self, text: str) -> None:
        """Prints a note of -v above the bars."""
        if self.out.verbose:
            self.note(text)

    def take(self, progress: Progress) -> None:
        """Prints an event; without one, draws the bar of the transfer."""
        host = shown(progress.host, MAX_TITLE)
        match progress.event:
            case None if self._bars is not None:
                to = "to" if self._role == "sender" else "from"
                self._bars.update(progress, f"{to} {host}")
            case None:
                pass
            case TransferPlanned() as plan:
                self._planned(plan)
            case Connected(context, qp, again):
                self._context = context
                if again and self._role == "sender":
                    self.note("connected again")
                if self._role == "sender":
                    endpoint.announce(self.out, context)
                if self.out.verbose:
                    self.note(figures.parameters(context, qp))
            case Disconnected():
                if self._bars is not None:
                    self._bars.remove(progress.transfer)
            case Waiting() as event:
                if self._bars is None:
                    self.note(str(event))
            case Trying() as event:
                ends = event.lost and event.seconds is not None
                self.note(f"{event} (--retry 0 ends at once)" if ends else str(event))
            case Resumed() | Grew() | Unchanged() | Kept() | Resumable() as event:
                self.note(str(event))
            case StoredBatch() as batch:
                with self.lines():
                    for line in batch_lines(batch, batch.seconds):
                        self.out.text(line)
            case FailedFile() as failed:
                self._failed(progress, failed)
            case Transfer() as result:
                self._ended(progress, result)
            case event:
                self.detail(describe(event))

    def _planned(self, plan: TransferPlanned) -> None:
        if plan.excluded:
            self.note(f"--exclude left out {plan.excluded} of the files and folders")
        if plan.skipped:
            first = (
                f"{plan.skipped[0]}; --follow sends what symbolic links lead to, --links some as"
                " links"
            )
            count = len(plan.skipped)
            self.note(f"skipped {counted(count, 'file')}{'; the first' * (count > 1)}: {first}")

    def _failed(self, progress: Progress, failed: FailedFile) -> None:
        """Prints the cause. Both ends print it, each with the host where it is. All files below a
        folder whose name is refused have the same cause, which is printed once.
        """
        there = "" if failed.end == self._role else f"{shown(progress.host)}: "
        line = f"not copied: {there}{shortened(printable(failed.error), MAX_ERROR)}"
        if (progress.transfer, line) != self._last:
            with self.lines():
                self.out.warn(line)
        self._last = progress.transfer, line

    def _ended(self, progress: Progress, result: Transfer) -> None:
        """Prints what happened to the planes, the bins, the JSON, and how many files were not
        copied.
        """
        about = f"{progress.host}: " if self._role == "receiver" else ""
        carried = carried_bytes(self._role, result.planes)
        weighed = [plane.plane for plane in result.planes if plane.weight < 100]
        if story := sentence(result.outages) or figures.sentence(carried, weighed):
            self.note(about + story)
        for line, used in backup_lines(result.planes, result.evs, carried):
            (self.note if used else self.detail)(about + line)
        self.note_once(overflow(self._context, result.counters))
        self.detail(waits_sentence(result.waits))
        if result.bins is not None:
            self.text("\n".join(figures.bins_lines(self._role, result.bins)))
        self.out.result(result)
        if result.failed_count > 1:
            self.out.warn(failed_sentence(result.failed_count))


def failed_sentence(count: int) -> str:
    """How many files were not copied."""
    named = f"; the first {MAX_NAMED} are named" if count > MAX_NAMED else ""
    return f"{count} files and folders were not copied{named}"


def exit_code(result: Transfer) -> int:
    """Of a transfer that has ended by itself."""
    return Exit.NOT_ALL_COPIED if result.failed_count else Exit.OK


# ---- The line of a running transfer --------------------------------------------------------------


_GAP = "  "
_LEAST_TITLE, _LEAST_BAR, _MOST_BAR = 6, 10, 30


def progress_line(progress: Progress, title: str, width: int) -> str:
    """Percentage, size, rate and time left; then, as far as `width` allows, planes, title, bar."""
    if progress.waiting:
        return _cut(str(Waiting(progress.host)), width)
    done, size = progress.done_bytes, progress.bytes
    share = None if not size else min(done / size, 1.0)
    first = "" if share is None else f"{int(100 * share):3}%"
    of = f"{scaled(done, 'B'):>8}" + ("" if size is None else f" of {scaled(size, 'B')}")
    parts = [of, f"{scaled(progress.rate_bits_per_second, 'bit/s'):>11}", _left(progress)]
    room = width - cell_len(_GAP.join(filter(None, [first, *parts])))

    def add(*texts: str) -> None:
        nonlocal room
        for text in texts:
            if text and len(_GAP) + cell_len(text) <= room:
                parts.append(text)
                room -= len(_GAP) + cell_len(text)
                return

    if planes := progress.planes:
        working = progress.working_planes
        add(f"{working}/{counted(planes, 'plane')}", f"{working}/{planes}")
    if title and room - len(_GAP) >= _LEAST_TITLE:
        add(title, f"{_cut(title, room - len(_GAP) - 1)}…")
    else:
        add(title)
    bar = min(room - len(_GAP), _MOST_BAR)
    if share is not None and bar >= _LEAST_BAR:
        full = int(bar * share)
        parts.insert(0, "━" * full + "─" * (bar - full))
    return _cut(_GAP.join(text for text in [first, *parts] if text), width)


def _cut(text: str, columns: int) -> str:
    """The text, or the part of it that fits: some characters take two columns."""
    return text if cell_len(text) <= columns else set_cell_size(text, columns).rstrip()


def _left(progress: Progress) -> str:
    if progress.bytes is None:
        return ""
    rate, left_bits = progress.rate_bits_per_second, 8 * (progress.bytes - progress.done_bytes)
    if rate <= 0 or left_bits / rate >= 360_000:  # 100 hours
        return "ETA -:--"
    minutes, seconds = divmod(round(max(left_bits, 0) / rate), 60)
    hours, minutes = divmod(minutes, 60)
    return f"ETA {hours}:{minutes:02}:{seconds:02}" if hours else f"ETA {minutes}:{seconds:02}"


# ---- What happened to the planes of a QP on the way ----------------------------------------------


_MOST_NAMED = 4
_SHORT_SECONDS = 0.2


def sentence(outages: tuple[Outage, ...]) -> str:
    """ "plane 2 was lost at 3.1 s and was back at 5.0 s"; empty without outages."""
    by_plane: dict[int, list[Outage]] = {}
    for each in outages:
        by_plane.setdefault(each.plane, []).append(each)
    parts = [_of_plane(plane, each) for plane, each in by_plane.items()]
    if len(parts) > _MOST_NAMED:
        parts[_MOST_NAMED:] = [f"also lost: {counted(len(parts) - _MOST_NAMED, 'plane')}"]
    return "; ".join(parts)


def _of_plane(plane: int, outages: list[Outage]) -> str:
    first, last = outages[0], outages[-1]
    often = f" {counted(len(outages), 'time')}, first" if len(outages) > 1 else ""
    back_at = last.back_at_seconds
    if back_at is not None and not often and back_at - first.lost_at_seconds < _SHORT_SECONDS:
        gone = scaled(back_at - first.lost_at_seconds, "s")
        return f"plane {plane} was lost for {gone} at {_moment(first.lost_at_seconds)}"
    back = "did not come back" if back_at is None else f"was back at {_moment(back_at)}"
    return f"plane {plane} was lost{often} at {_moment(first.lost_at_seconds)} and {back}"


def _moment(seconds: float) -> str:
    """A time in the transfer, to a tenth of a second."""
    return f"{seconds:.1f} s" if seconds < 1000 else f"{seconds:.0f} s"


def describe(event: QpEvent) -> str:
    """One event as a line, for -v."""
    match event:
        case EvEvent():
            return f"plane {event.plane}: EV {event.path} is {event.state.name}: {_why(event)}"
        case PlaneEvent():
            what = "suspended" if event.suspended else "in use again"
            return f"plane {event.plane} is {what}: {_why(event)}"
        case PlaneShareEvent():
            what = "slow" if event.slow else "no longer slow"
            return f"plane {event.plane} is {what}: it carries {event.percent}% of the others"
        case PortEvent():
            return f"plane {event.plane}: port {'up' if event.up else 'down'}: {_why(event)}"
        case EventsLost():
            return f"missing here: {counted(event.count, 'event')}"
        case QpErrorEvent():
            return f"the QP failed: {event.status.explanation}"


def _why(event: EvEvent | PlaneEvent | PortEvent) -> str:
    return event.reason.explanation
