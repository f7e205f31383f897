# SPDX-License-Identifier: Apache-2.0
"""Reports: the verdicts on a device, as results for programs, JUnit XML and HTML, and captures of
failed cases; and what a capture shows, as a result and as lines for people.
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
from mrc.linux.system import write_whole
from mrc.results import Result, like
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


def counts_text(outcomes: Sequence[CaseOutcome]) -> str:
    """`3 passed, 1 failed, 0 skipped`"""
    return ", ".join(f"{count} {verdict}" for verdict, count in verdict_counts(outcomes).items())


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
{body}
</html>
"""


def write_html(path: Path, device: str, outcomes: Sequence[CaseOutcome]) -> None:
    """Writes the verdicts as a page; failed cases have their packets."""
    names = agreed_readings(outcomes)
    told = counts_text(outcomes)
    lines = [html.escape(f"{told}. The device {agreement(names)}." if names else f"{told}.")]
    lines += ["<table>", "<tr><th>case</th><th>a device</th><th>verdict</th><th></th></tr>"]
    for each in outcomes:
        more = html.escape(each.reason or agreement(each.readings))
        if each.verdict is Verdict.FAILED:
            more += f"<pre>{html.escape(transcript(each))}</pre>"
        cells = (each.case.name, each.case.title, str(each.verdict))
        text = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        lines.append(f'<tr class="{each.verdict}">{text}<td>{more}</td></tr>')
    title = html.escape(f"mrc conform: {device}")
    body = "\n".join([*lines, "</table>"])
    write_whole(path, _PAGE.format(title=title, body=body).encode())


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
        turns = ""
        if way.turn_packets is not None:
            turns = f"; {digits(way.turn_packets)} packets of the plane between two uses"
            if (marked := way.turn_after_mark_packets) is not None:
                turns += f", {digits(marked)} after a mark"
        yield f"  EVs      {way.evs}, fairness {way.fairness:.3f}{turns}"
        again = counted(way.retransmissions, "packet")
        lost = f"{counted(way.lost, 'PSN')} sent again, {again} with rtx"
        yield f"  loss     {lost}{_time(', median wait', way.retransmission_seconds)}"
        yield (f"  timers   {counted(way.timer_retransmissions, 'retransmission')} without news"
               f"{_time(', median wait', way.timer_seconds)}"
               f"{_time('; with news', way.reported_loss_seconds)}")  # fmt: skip
        reactions = {
            "a loss": way.flight_after_loss, "a mark": way.flight_after_mark,
            "a trim": way.flight_after_trim,
        }  # fmt: skip
        if told := [f"{share:.2f} after {name}"
                    for name, share in reactions.items() if share is not None]:  # fmt: skip
            yield f"  reaction flight falls to {', '.join(told)}"
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
