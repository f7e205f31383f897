# SPDX-License-Identifier: Apache-2.0
"""Reports: the verdicts on a device, as results for programs, JUnit XML and HTML, and captures of
failed cases; and what a capture shows, as a result, as lines for people, and as a page with plots
that loads nothing from the network.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from msgspec import Struct

from mrc.conform import packets
from mrc.conform.history import Judge, QpDirection, typical
from mrc.conform.packets import Datagram
from mrc.conform.player import CaseOutcome, Verdict
from mrc.conform.readings import READINGS
from mrc.dissect.capture import CapturedFrame
from mrc.linux.files import write_whole
from mrc.results import Result, like
from mrc.sim.drawing import Chart, ChartLine, ChartPoint, style_sheet
from mrc.units import counted, digits


class CaseVerdict(Struct, frozen=True, kw_only=True):
    """The verdict on one case."""

    name: str
    """Of the case."""
    topic: str
    """The file that has it."""
    title: str
    """What the device must do."""
    section: str
    """Of MRC 1.0, as its readers cite it; empty: not known."""
    verdict: str
    """passed, failed, or skipped because the device lacks something."""
    reason: str
    """Of a failed case the step and what came instead; of a skipped one what the device lacks."""
    readings: tuple[str, ...]
    """The readings with which the device agrees, such as C4-B."""
    unchecked: tuple[str, ...]
    """Steps that this device cannot be asked about."""
    seconds: float
    """How long the case took."""
    capture: str | None
    """The pcap file of a failed case; null without --captures."""


class Conformance(Result, frozen=True, kw_only=True):
    """The verdicts on a device."""

    device: str
    """What was judged."""
    passed: int
    """Number of cases."""
    failed: int
    """Number of cases."""
    skipped: int
    """Number of cases."""
    readings: tuple[str, ...]
    """All readings with which the device agrees."""
    cases: tuple[CaseVerdict, ...]
    """Each case, in the order in which they were played."""


def agreed_readings(outcomes: Iterable[CaseOutcome]) -> tuple[str, ...]:
    """All readings with which a device agrees, each once."""
    found = {name: None for outcome in outcomes for name in outcome.readings}
    return tuple(sorted(found, key=lambda name: (name[0], int(name[1:].split("-")[0]), name)))


def contradictions(names: Sequence[str]) -> list[str]:
    """Subjects on which the device follows several alternatives."""
    subjects = [name.partition("-")[0] for name in names]
    return [each for each in dict.fromkeys(subjects) if subjects.count(each) > 1]


def verdict_counts(outcomes: Sequence[CaseOutcome]) -> dict[Verdict, int]:
    return {each: sum(outcome.verdict is each for outcome in outcomes) for each in Verdict}


def case_results(
    device: str, outcomes: Sequence[CaseOutcome], captures: dict[str, Path]
) -> Conformance:
    """The verdicts for programs."""
    number = verdict_counts(outcomes)
    return Conformance(
        device=device,
        passed=number[Verdict.PASSED], failed=number[Verdict.FAILED],
        skipped=number[Verdict.SKIPPED], readings=agreed_readings(outcomes),
        cases=tuple(
            like(
                CaseVerdict, each.case, each,
                verdict=str(each.verdict),
                capture=str(captures[each.case.name]) if each.case.name in captures else None,
            )
            for each in outcomes
        ),
    )  # fmt: skip


def capture(folder: Path, outcome: CaseOutcome) -> Path:
    """Writes the datagrams of a case as NAME.pcap; returns the file."""
    path = folder / f"{outcome.case.name}.pcap"
    with path.open("wb") as file:
        packets.write_capture(
            file, ((seen.at_ns, seen.flow, seen.payload) for seen in _in_order(outcome))
        )
    return path


def _in_order(outcome: CaseOutcome) -> list[Datagram]:
    """The packets by their time: the judge reads some later than it sends others."""
    return sorted(outcome.seen, key=lambda seen: seen.at_ns)


def transcript(outcome: CaseOutcome) -> str:
    """The steps of a case and the packets of both sides."""
    lines = outcome.case.text.splitlines()
    packets = _in_order(outcome)
    for seen in packets:
        arrow = "->" if seen.sent else "<-"
        at = f"{(seen.at_ns - packets[0].at_ns) / 1e9:.6f}"
        lines.append(f"{at} {arrow} ev {seen.flow.ev:08x} {seen.packet.line(seen.flow)}")
    return "\n".join(lines)


_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 15px/1.4 sans-serif; margin: 2em; }}
td, th {{ text-align: left; padding: 0.1em 1em 0.1em 0; vertical-align: top; }}
.failed {{ color: #b00; }} .skipped {{ color: #777; }}
pre {{ background: #f4f4f4; padding: 0.7em; overflow-x: auto; }}
</style>
<h1>{title}</h1>
<p>{summary}</p>
<table>
<tr><th>case</th><th>a device</th><th>verdict</th><th></th></tr>
{rows}
</table>
"""


def write_html(path: Path, device: str, outcomes: Sequence[CaseOutcome]) -> None:
    """Writes the verdicts as a page; failed cases have their packets."""
    number = verdict_counts(outcomes)
    told = ", ".join(f"{count} {verdict}" for verdict, count in number.items())
    names = agreed_readings(outcomes)
    summary = f"{told}. The device {agreement(names)}." if names else f"{told}."
    rows = "\n".join(_row(each) for each in outcomes)
    title = html.escape(f"mrc conform: {device}")
    page = _PAGE.format(title=title, summary=html.escape(summary), rows=rows)
    write_whole(path, page.encode())


def _row(outcome: CaseOutcome) -> str:
    more = html.escape(outcome.reason or agreement(outcome.readings))
    if outcome.verdict is Verdict.FAILED:
        more += f"<pre>{html.escape(transcript(outcome))}</pre>"
    cells = (outcome.case.name, outcome.case.title, str(outcome.verdict))
    text = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
    return f'<tr class="{outcome.verdict}">{text}<td>{more}</td></tr>'


def write_junit(path: Path, device: str, outcomes: Sequence[CaseOutcome]) -> None:
    """Writes the verdicts as JUnit XML, one test suite for each topic."""
    root = ElementTree.Element("testsuites", name=f"mrc conform: {device}")
    for topic in dict.fromkeys(outcome.case.topic for outcome in outcomes):
        _suite(root, topic, [each for each in outcomes if each.case.topic == topic])
    ElementTree.indent(root)
    write_whole(path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")


def _suite(root: ElementTree.Element, topic: str, outcomes: Sequence[CaseOutcome]) -> None:
    number = verdict_counts(outcomes)
    suite = ElementTree.SubElement(
        root, "testsuite", name=topic, tests=str(len(outcomes)),
        failures=str(number[Verdict.FAILED]), errors="0", skipped=str(number[Verdict.SKIPPED]),
        time=f"{sum(each.seconds for each in outcomes):.3f}",
    )  # fmt: skip
    for outcome in outcomes:
        case = ElementTree.SubElement(
            suite, "testcase", classname=topic, name=outcome.case.name,
            time=f"{outcome.seconds:.3f}",
        )  # fmt: skip
        if outcome.verdict is Verdict.FAILED:
            failure = ElementTree.SubElement(case, "failure", message=outcome.reason)
            failure.text = transcript(outcome)
        elif outcome.verdict is Verdict.SKIPPED:
            ElementTree.SubElement(case, "skipped", message=outcome.reason)
        elif outcome.readings:
            ElementTree.SubElement(case, "system-out").text = agreement(outcome.readings)


def agreement(names: Sequence[str]) -> str:
    """What a verdict says of the readings."""
    if not names:
        return ""
    return f"agrees with reading{'s' * (len(names) > 1)} {', '.join(names)}"


# ---- Captures ------------------------------------------------------------------------------------


class InvariantBreach(Struct, frozen=True, kw_only=True):
    """An invariant that the packets break."""

    invariant: str
    """What should hold."""
    count: int
    """How often it does not."""
    first: str
    """The first packet that breaks it."""
    first_seconds: float
    """When it was captured, since the first packet."""


class DirectionText(Struct, frozen=True, kw_only=True):
    """The data that goes to one QP, and the answers to it."""

    qpn: int
    """Of the receiver."""
    source: str
    """Address of the first packet's sender."""
    destination: str
    """Address that the first packet went to."""
    packets: int
    """Data packets, retransmissions included."""
    payload_bytes: int
    """Their payload."""
    retransmissions: int
    """Packets with rtx."""
    lost: int
    """PSNs that were sent more than once."""
    uncaptured: int
    """PSNs that the capture lacks, between others that it has."""
    marked: int
    """Packets with CE."""
    trimmed: int
    """Packets that a switch has cut."""
    sacks: int
    """Answers of this kind."""
    acks: int
    """Transport ACKs and NAKs."""
    nacks: dict[str, int]
    """Answers of this kind, by reason."""
    window_psns: int
    """The most PSNs between the cumulative PSN and the highest one sent."""
    evs: int
    """EVs that carried data."""
    fairness: float
    """Jain's index of the packets of each EV: 1 if all carry as many."""
    sack_seconds: float | None
    """Median time from a packet to the SACK that it triggered; null: none."""
    retransmission_seconds: float | None
    """Median time from a packet to its retransmission; null: none."""
    reported_loss_seconds: float | None
    """The same, after a SACK or NACK that showed the loss; null: none."""
    timer_seconds: float | None
    """The same, without such an answer: a timer; null: none."""
    timer_retransmissions: int
    """Number of these."""
    flight_after_loss: float | None
    """Least PSNs in flight within 4 round trips after a loss, relative to the flight at the loss;
    the median; null: no loss with a flight of at least 4 PSNs."""
    flight_after_mark: float | None
    """The same after a SACK with SKIP_ONCE."""
    flight_after_trim: float | None
    """The same after a NACK."""
    turn_packets: float | None
    """Median number of packets of its plane between two uses of an EV; null: no EV came twice."""
    turn_after_mark_packets: float | None
    """The same after a SACK with SKIP_ONCE for that EV."""
    readings: tuple[str, ...]
    """The readings that its packets show, such as C3-A."""
    broken: tuple[InvariantBreach, ...]
    """Invariants that its packets break."""


class CaptureReport(Result, frozen=True, kw_only=True):
    """What a capture shows."""

    packets: int
    """Packets to the UDP port."""
    wrong_icrc: int
    """Of which the ICRC was wrong; they are not judged."""
    readings: tuple[str, ...]
    """Readings that packets of no QP show."""
    hidden: tuple[str, ...]
    """Subjects of readings of which no packet shows anything."""
    directions: tuple[DirectionText, ...]
    """Each direction of each QP that carried data."""


class ReadingCount(Struct, frozen=True, kw_only=True):
    """An alternative that packets follow."""

    reading: str
    """Its name, such as C3-A."""
    subject: str
    """What it is about."""
    text: str
    """What it says."""
    ours: bool
    """Whether mrc's engine follows it, too."""
    packets: int
    """How many packets show it."""


class ReadingCounts(Result, frozen=True, kw_only=True):
    """The readings of MRC that a capture shows."""

    packets: int
    """Packets of MRC."""
    readings: tuple[ReadingCount, ...]
    """In the order of the table of readings."""
    hidden: tuple[str, ...]
    """Subjects, such as C5, of which it shows nothing."""


def judged(frames: Iterable[CapturedFrame], ports: Collection[int] | None) -> tuple[Judge, int]:
    """What these frames show, and how many packets to these UDP ports there are."""
    judge, packets, start = Judge(), 0, None
    for frame in frames:
        start = frame.seconds if start is None else start
        for flow, packet, *_ in frame.packets(ports):
            judge.take(frame.seconds - start, flow, packet)
            packets += 1
    judge.finish()
    return judge, packets


def capture_result(judge: Judge, packets: int) -> CaptureReport:
    """For programs."""
    return CaptureReport(
        packets=packets,
        wrong_icrc=judge.wrong_icrc,
        readings=tuple(sorted(judge.readings)),
        hidden=_hidden(_seen(judge)),
        directions=tuple(map(_direction, judge.directions.values())),
    )


def _seen(judge: Judge) -> Counter[str]:
    """How often each reading was seen."""
    seen = Counter(judge.readings)
    for way in judge.directions.values():
        seen.update(way.readings)
    return +seen


def _hidden(seen: Collection[str]) -> tuple[str, ...]:
    """The subjects of which nothing was seen."""
    subjects = {name.partition("-")[0] for name in seen}
    return tuple(each.id for each in READINGS if each.id not in subjects)


def _direction(way: QpDirection) -> DirectionText:
    firsts = {each.invariant: each for each in reversed(way.findings)}
    return like(
        DirectionText, way,
        window_psns=way.window, evs=len(way.evs), nacks=dict(way.nacks),
        sack_seconds=typical(way.rtts), retransmission_seconds=typical(way.waits),
        reported_loss_seconds=typical(way.course.waits_reported),
        timer_seconds=typical(way.course.waits_silent),
        timer_retransmissions=len(way.course.waits_silent),
        flight_after_loss=way.course.reaction("loss"),
        flight_after_mark=way.course.reaction("mark"),
        flight_after_trim=way.course.reaction("trim"),
        turn_packets=typical(way.turns), turn_after_mark_packets=typical(way.turns_after_mark),
        readings=tuple(sorted(name for name, count in way.readings.items() if count)),
        broken=tuple(
            InvariantBreach(
                invariant=name, count=count, first=firsts[name].text,
                first_seconds=firsts[name].seconds,
            )
            for name, count in way.broken.items()
        ),
    )  # fmt: skip


def capture_lines(found: CaptureReport) -> Iterator[str]:
    """For people."""
    for way in found.directions:
        yield f"{way.source} > {way.destination}, QPN 0x{way.qpn:06x}"
        yield (f"  data     {counted(way.packets, 'packet')}, {way.payload_bytes} bytes; at most"
               f" {counted(way.window_psns, 'PSN')} in flight")  # fmt: skip
        yield f"  EVs      {way.evs}, fairness {way.fairness:.3f}{_turns(way)}"
        again = counted(way.retransmissions, "packet")
        lost = f"{counted(way.lost, 'PSN')} sent again, {again} with rtx"
        yield f"  loss     {lost}{_time(', median wait', way.retransmission_seconds)}"
        yield (f"  timers   {counted(way.timer_retransmissions, 'retransmission')} without news"
               f"{_time(', median wait', way.timer_seconds)}"
               f"{_time('; with news', way.reported_loss_seconds)}")  # fmt: skip
        if reactions := _reactions(way):
            yield f"  reaction {reactions}"
        yield f"  network  {way.marked} marked, {way.trimmed} trimmed"
        nacks = "".join(f", {count} NACK {name}" for name, count in way.nacks.items())
        yield (f"  answers  {counted(way.sacks, 'SACK')}{_time(' after', way.sack_seconds)},"
               f" {counted(way.acks, 'ACK')}{nacks}")  # fmt: skip
        yield f"  readings {', '.join(way.readings) or 'none shown'}"
        if way.uncaptured:
            yield f"  capture  lacks {counted(way.uncaptured, 'PSN')}; was it too slow?"
        for each in way.broken:
            yield (f"  BROKEN   {each.invariant}: {counted(each.count, 'time')}; first at"
                   f" {each.first_seconds:.6f} s: {each.first}")  # fmt: skip
    if found.readings:
        yield f"endpoints: readings {', '.join(found.readings)}"
    if found.hidden and found.directions:
        yield f"the capture shows nothing of readings {', '.join(found.hidden)}"
    if found.wrong_icrc:
        yield f"not judged: {counted(found.wrong_icrc, 'packet')} with a wrong ICRC"


def _turns(way: DirectionText) -> str:
    if way.turn_packets is None:
        return ""
    marked = way.turn_after_mark_packets
    after_mark = "" if marked is None else f", {digits(marked)} after a mark"
    return f"; {digits(way.turn_packets)} packets of the plane between two uses{after_mark}"


def _reactions(way: DirectionText) -> str:
    """The flight after losses, marks and trims, relative to that before."""
    found = {
        "a loss": way.flight_after_loss, "a mark": way.flight_after_mark,
        "a trim": way.flight_after_trim,
    }  # fmt: skip
    told = [f"{share:.2f} after {name}" for name, share in found.items() if share is not None]
    return f"flight falls to {', '.join(told)}" if told else ""


def _time(before: str, seconds: float | None) -> str:
    return "" if seconds is None else f"{before} {seconds * 1e6:.0f} us"


def readings(frames: Iterable[CapturedFrame], ports: Collection[int] | None) -> ReadingCounts:
    """What all packets to these UDP ports show about readings."""
    judge, packets = judged(frames, ports)
    seen = _seen(judge)
    found = tuple(
        ReadingCount(
            reading=name, subject=each.title, text=one.text, ours=name == each.choice,
            packets=seen[name],
        )
        for each in READINGS
        for name, one in zip(each.names, each.alternatives, strict=True) if seen[name]
    )  # fmt: skip
    return ReadingCounts(packets=packets, readings=found, hidden=_hidden(seen))


def reading_lines(found: ReadingCounts) -> Iterator[str]:
    """For people."""
    for one in found.readings:
        ours = " <- mrc" if one.ours else ""
        yield f"{one.reading:6} {one.packets:7} packets  {one.subject}: {one.text}{ours}"
    if found.hidden:
        yield f"the capture shows nothing of {', '.join(found.hidden)}"


# ---- Plots of a capture --------------------------------------------------------------------------


_UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
_PLOT_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
{style}
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em;
  color: var(--ink); background: var(--paper); }}
svg {{ max-width: 100%; height: auto; }} pre {{ overflow-x: auto; }}
</style>
</head>
<body>
<h1>{title}</h1>
<pre>{text}</pre>
{plots}
</body>
</html>
"""


def capture_page(name: str, judge: Judge, found: CaptureReport) -> str:
    """The page of a capture. Requires the extra `plot`."""
    plots = []
    for way in judge.directions.values():
        ends = f"{way.source} to {way.destination}, QPN 0x{way.qpn:06x}"
        plots.append(f"<h2>{html.escape(ends)}</h2>")
        plots += [chart.svg() for chart in _charts(way) if chart.lines]
    return _PLOT_PAGE.format(
        title=html.escape(f"mrc conform judge: {name}"), style=style_sheet(),
        text=html.escape("\n".join(capture_lines(found))), plots="\n".join(plots),
    )  # fmt: skip


def _charts(way: QpDirection) -> Iterator[Chart]:
    course = way.course
    yield _over_time("PSNs in flight", "PSNs", course.flight.samples, 1.0)
    unit, scale = _unit([value for _, value in course.round_trips.samples])
    title = f"from a packet to its SACK, {unit}"
    yield _over_time("Round trips", title, course.round_trips.samples, scale)
    mean = sum(way.evs.values()) / len(way.evs) if way.evs else 1.0
    yield _sorted("Packets of each EV", "EVs, the busiest last", "% of the mean", {
        "data": [100 * count / mean for count in way.evs.values()]})  # fmt: skip
    waits = {"after a SACK or NACK": course.waits_reported, "by a timer": course.waits_silent}
    unit, scale = _unit([wait for each in waits.values() for wait in each])
    yield _sorted("Times until a retransmission", "retransmissions, the latest last", unit, {
        name: [wait / scale for wait in each] for name, each in waits.items()})  # fmt: skip


def _unit(seconds: Sequence[float]) -> tuple[str, float]:
    """A unit for these times, and its length in seconds."""
    most = max(seconds, default=0.0)
    return next(one for one in _UNITS if most >= 2 * one[1] or one[0] == "us")


def _over_time(
    title: str, name: str, samples: Sequence[tuple[float, float]], scale: float
) -> Chart:
    end = max((seconds for seconds, _ in samples), default=0.0)
    unit, second = _unit([end])
    points = [_point(seconds / second, value / scale) for seconds, value in samples]
    return _chart(title, f"time, {unit}", name, {"": points})


def _sorted(title: str, x_title: str, y_title: str, values: dict[str, list[float]]) -> Chart:
    """Point n is the n-th smallest value."""
    lines = {
        name: [_point(n, value) for n, value in enumerate(sorted(each), 1)]
        for name, each in values.items() if each
    }  # fmt: skip
    return _chart(title, x_title, y_title, lines)


def _point(x: float, y: float) -> ChartPoint:
    return ChartPoint(x, y, y, y)


def _chart(title: str, x_title: str, y_title: str, lines: dict[str, list[ChartPoint]]) -> Chart:
    points = [point for each in lines.values() for point in each]
    chart = Chart(
        x_title=x_title, y_title=y_title, title=title,
        x_end=max((point.x for point in points), default=0.0) or 1.0,
        y_end=1.05 * max((point.middle for point in points), default=0.0) or 1.0,
    )  # fmt: skip
    chart.lines = [
        ChartLine(name or y_title, each, marked=len(each) < 50)
        for name, each in lines.items()
        if each
    ]
    return chart
