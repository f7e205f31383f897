# SPDX-License-Identifier: Apache-2.0
"""Verdicts as results for programs, as JUnit XML and HTML, and captures of failed cases."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree

from mrc.conform import packets
from mrc.conform.packets import Datagram
from mrc.conform.player import Outcome, Verdict
from mrc.conform.results import Conformance, Judged
from mrc.dissect.text import what
from mrc.linux.files import write_whole
from mrc.results.plain import like


def readings(outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """All readings with which a device agrees, each once."""
    found = {name: None for outcome in outcomes for name in outcome.readings}
    return tuple(sorted(found, key=lambda name: (name[0], int(name[1:].split("-")[0]), name)))


def contradictions(names: Sequence[str]) -> list[str]:
    """Subjects on which the device follows several alternatives."""
    subjects = [name.partition("-")[0] for name in names]
    return [each for each in dict.fromkeys(subjects) if subjects.count(each) > 1]


def counts(outcomes: Sequence[Outcome]) -> dict[Verdict, int]:
    return {each: sum(outcome.verdict is each for outcome in outcomes) for each in Verdict}


def result(device: str, outcomes: Sequence[Outcome], captures: dict[str, Path]) -> Conformance:
    """The verdicts for programs."""
    number = counts(outcomes)
    return Conformance(
        device=device,
        passed=number[Verdict.PASSED], failed=number[Verdict.FAILED],
        skipped=number[Verdict.SKIPPED], readings=readings(outcomes),
        cases=tuple(
            like(
                Judged, each.case, each,
                verdict=str(each.verdict),
                capture=str(captures[each.case.name]) if each.case.name in captures else None,
            )
            for each in outcomes
        ),
    )  # fmt: skip


def capture(folder: Path, outcome: Outcome) -> Path:
    """Writes the datagrams of a case as NAME.pcap; returns the file."""
    path = folder / f"{outcome.case.name}.pcap"
    with path.open("wb") as file:
        packets.write_capture(
            file, ((seen.at_ns, seen.flow, seen.payload) for seen in _in_order(outcome))
        )
    return path


def _in_order(outcome: Outcome) -> list[Datagram]:
    """The packets by their time: the judge reads some later than it sends others."""
    return sorted(outcome.seen, key=lambda seen: seen.at_ns)


def transcript(outcome: Outcome) -> str:
    """The steps of a case and the packets of both sides."""
    lines = outcome.case.text.splitlines()
    packets = _in_order(outcome)
    for seen in packets:
        arrow = "->" if seen.sent else "<-"
        at = f"{(seen.at_ns - packets[0].at_ns) / 1e9:.6f}"
        lines.append(f"{at} {arrow} ev {seen.flow.ev:08x} {what(seen.packet, seen.flow)}")
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


def write_html(path: Path, device: str, outcomes: Sequence[Outcome]) -> None:
    """Writes the verdicts as a page; failed cases have their packets."""
    number = counts(outcomes)
    told = ", ".join(f"{count} {verdict}" for verdict, count in number.items())
    names = readings(outcomes)
    summary = f"{told}. The device {agreement(names)}." if names else f"{told}."
    rows = "\n".join(_row(each) for each in outcomes)
    title = html.escape(f"mrc conform: {device}")
    page = _PAGE.format(title=title, summary=html.escape(summary), rows=rows)
    write_whole(path, page.encode())


def _row(outcome: Outcome) -> str:
    more = html.escape(outcome.reason or agreement(outcome.readings))
    if outcome.verdict is Verdict.FAILED:
        more += f"<pre>{html.escape(transcript(outcome))}</pre>"
    cells = (outcome.case.name, outcome.case.title, str(outcome.verdict))
    text = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
    return f'<tr class="{outcome.verdict}">{text}<td>{more}</td></tr>'


def write_junit(path: Path, device: str, outcomes: Sequence[Outcome]) -> None:
    """Writes the verdicts as JUnit XML, one test suite for each topic."""
    root = ElementTree.Element("testsuites", name=f"mrc conform: {device}")
    for topic in dict.fromkeys(outcome.case.topic for outcome in outcomes):
        _suite(root, topic, [each for each in outcomes if each.case.topic == topic])
    ElementTree.indent(root)
    write_whole(path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")


def _suite(root: ElementTree.Element, topic: str, outcomes: Sequence[Outcome]) -> None:
    number = counts(outcomes)
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
