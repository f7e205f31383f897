# SPDX-License-Identifier: Apache-2.0
"""The plot of a run and the page of all runs: well-formed, to scale, and complete; `mrc sim` as
typed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from slowness import PATIENCE

from mrc.cli.main import main
from mrc.cli.schema import schema
from mrc.enums import CcKind
from mrc.sim import cli, drawing, page
from mrc.sim.results import Check
from mrc.sim.scenario import Scenario, parse_scenario
from mrc.sim.trials import Summary, run_trial, summarize

SVG = "{http://www.w3.org/2000/svg}"


VALUES = {
    "title": "a & b",
    "claim": "x < y",
    "topology": {"hosts": 4, "planes": 1, "t0": 2, "t1": 2},
    "run": {"sample": "5us"},
    "traffic": [
        {"kind": "pairs", "pairs": [[0, 2]], "write": "1MiB", "group": "a<b"},
        {"kind": "pairs", "pairs": [[1, 3]], "write": "1MiB", "start": "1ms"},
    ],
    "faults": [
        {"target": "t1:1.0", "kind": "delay", "delay": "1us", "at": "20us", "until": "40us"},
        {"target": "t1:1.1", "kind": "silent", "at": "2s"},
    ],
    "checks": [
        {"name": "c < d", "measure": "ev_bad_after", "at_most": 3},
        {"measure": "qp_errors", "at_most": 0},
    ],
}


def parse(**tables: object) -> Scenario:
    return parse_scenario(VALUES | tables, "small", "small.toml")


def summaries_of(scenario: Scenario, seeds: int = 1) -> list[Summary]:
    return [summarize(run_trial(scenario, seed)) for seed in range(1, seeds + 1)]


@pytest.fixture(scope="module")
def summaries() -> list[Summary]:
    return summaries_of(parse(), seeds=2)


def lines_of(root: ElementTree.Element) -> list[ElementTree.Element]:
    """The lines of the data, with the samples of the legend."""
    return [
        path
        for path in root.iter(f"{SVG}path")
        if re.search(r"fill: none;.* stroke: var\(--line-\d\)", path.attrib.get("style", ""))
    ]


def check_lines(root: ElementTree.Element, count: int) -> None:
    lines = lines_of(root)
    assert len(lines) == 2 * count
    height = float(root.attrib["height"])
    for line in lines:
        numbers = [float(word) for word in re.findall(r"[\d.-]+", line.attrib["d"])]
        assert all(0 <= x <= drawing.WIDTH for x in numbers[::2])
        assert all(0 <= y <= height for y in numbers[1::2])
        assert numbers[::2] == sorted(numbers[::2])


def texts(root: ElementTree.Element) -> list[str | None]:
    return [element.text for element in root.iter(f"{SVG}text")]


def test_time_svg__is_well_formed_and_to_scale(summaries: list[Summary]) -> None:
    root = ElementTree.fromstring(drawing.standalone(page.draw_scenario(parse(), summaries)))
    check_lines(root, 2)
    assert {"a<b", "pairs", "time, us", "goodput, % of line rate", "100", "1000"} <= set(
        texts(root)
    )
    [band] = root.iter(f"{SVG}title")  # the other fault comes after the end
    assert band.text == "t1:1.0 delay"
    assert "grey: t1:1.0 delay" in texts(root)  # the band is too narrow for the words
    assert "small, median of seeds 1 to 2: a & b" in texts(root)


def boxes(root: ElementTree.Element) -> Iterator[tuple[float, float, float, float, str]]:
    """Left, top, right and bottom of every text, in the font of the layout."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    measure = TextToPath().get_text_width_height_descent
    for element in root.iter(f"{SVG}text"):
        style = dict(part.split(": ") for part in element.attrib["style"].split("; "))
        font = FontProperties(
            family="DejaVu Sans", size=style["font-size"].removesuffix("px"),
            weight=int(style.get("font-weight", 400)),
        )  # fmt: skip
        width, height, _ = measure(element.text or "", font, ismath=False)
        if "x" in element.attrib:
            x, y = float(element.attrib["x"]), float(element.attrib["y"])
        else:
            move = re.match(r"translate\(([\d.-]+) ([\d.-]+)\)", element.attrib["transform"])
            assert move is not None
            x, y = float(move[1]), float(move[2])
        before = width * {"start": 0, "middle": 0.5, "end": 1}[style.get("text-anchor", "start")]
        if "rotate(-90" in element.attrib.get("transform", ""):
            yield x - height, y - width + before, x, y + before, str(element.text)
        else:
            yield x - before, y - height, x - before + width, y, str(element.text)


def check_texts_fit(svg: str) -> None:
    root = ElementTree.fromstring(svg)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for left, top, right, bottom, text in boxes(root):
        assert left > -1 and right < width + 1 and top > -2 and bottom < height + 1, text


def test_svg__no_text_is_cut() -> None:
    long = "Words of a Scenario that MUST WRAP when there are many of them, " * 3
    chart = drawing.Chart(long, long, 10, 100, title=long, notes=[long])
    chart.bands += [(i, i + 0.5, f"uplink:1.0.{i} silent") for i in range(10)]
    chart.lines += [
        drawing.ChartLine(f"{i} {long}", [drawing.ChartPoint(0, 0, 0.5, 1)]) for i in range(3)
    ]
    check_texts_fit(chart.svg())
    chart = drawing.Chart("", "y", 4, 100, x_names=[long[:60]] * 4)
    chart.lines.append(drawing.ChartLine("a", [drawing.ChartPoint(0.5, 0, 0.5, 1)]))
    check_texts_fit(chart.svg())


@pytest.mark.parametrize(
    ("bands", "words"),
    [
        ([(0, 5, "plane:1 silent"), (5, 10, "plane:2 loss")], {"plane:1 silent", "plane:2 loss"}),
        ([(0, 10, "plane:1 silent")], {"plane:1 silent"}),
        ([(0, 1, "plane:1 silent"), (2, 3, "plane:1 silent")], {"grey: plane:1 silent"}),
        (
            [(0, 5, "plane:1 silent"), (4, 10, "plane:2 loss")],
            {"1", "2", "grey: 1 plane:1 silent, 2 plane:2 loss"},
        ),
    ],
)
def test_svg__every_band_has_a_name(bands: list[tuple[float, float, str]], words: set[str]) -> None:
    chart = drawing.Chart("x", "y", 10, 100, bands=bands)
    chart.lines.append(drawing.ChartLine("a", [drawing.ChartPoint(0, 0, 0.5, 1)]))
    svg = chart.svg()
    check_texts_fit(svg)
    assert words <= set(texts(ElementTree.fromstring(svg)))


@pytest.mark.parametrize(("reached", "note"), [(1.0, False), (1.3, True), (9.0, True)])
def test_variants_svg__what_exceeds_100_percent_has_a_note(reached: float, note: bool) -> None:
    check = {"measure": "completion", "of": "reference", "at_least": 0.5}
    scenario = parse(checks=[check], variants=[{"name": "one"}, {"name": "two"}])
    low, middle = 0.8 * reached, reached
    outcome = Check(
        scenario="small", name="completion", value=middle, low=low, high=middle, baselines={},
        relation=">=", target=0.5, met=True,
    )  # fmt: skip
    root = ElementTree.fromstring(page.variants_svg(scenario, [[outcome]] * 2, range(1, 4)))
    said = " ".join(str(text) for text in texts(root))
    assert ("Above 100%: more than in the run that it is compared with" in said) is note
    assert ("Values above 400% are drawn at 400%" in said) is (reached > 4)
    assert "small, median of seeds 1 to 3" in said and "quartiles of the seeds" in said
    check_lines(root, 2)


@pytest.mark.parametrize(("end", "unit"), [("1ms", "us"), ("2ms", "ms"), ("2s", "s")])
def test_time_svg__has_the_unit_of_its_length(end: str, unit: str) -> None:
    slow = VALUES["topology"] | {"host_rate": "1Mbit/s"}  # type: ignore[operator]
    drawn = page.draw_scenario(part := parse(topology=slow, run={"until": end}), summaries_of(part))
    assert f"time, {unit}<" in drawn


def test_shares__a_group_that_has_not_begun_has_none(summaries: list[Summary]) -> None:
    runs = {s.group: [(s, summaries[0].end_ns)] for s in summaries[0].series}
    end_ns = summaries[0].end_ns
    early = [p.middle for p in page.shares(runs["pairs"], end_ns, 5000) if p.x < 1e6]
    assert early and set(early) == {0}
    busy = [p.middle for p in page.shares(runs["a<b"], end_ns, 5000) if 30e3 < p.x < 70e3]
    assert all(0.8 < share < 1.05 for share in busy)


def test_flows_svg__has_a_dashed_line_for_each_baseline() -> None:
    scenario = parse(baselines=["ecmp", "go-back-n"], plot="flows", faults=[])
    root = ElementTree.fromstring(page.draw_scenario(scenario, summaries_of(scenario)))
    check_lines(root, 6)
    assert "a<b, go-back-n" in texts(root)
    assert sum("stroke-dasharray" in line.attrib["style"] for line in lines_of(root)) == 8


def test_variants_svg__shows_values_and_target() -> None:
    check = {"name": "share", "measure": "completed", "at_least": "90%", "variants": ["two"]}
    variants = [{"name": "one"}, {"name": "two", "set": {"traffic.0.writes": 2}}]
    scenario = parse(checks=[check], variants=variants, baselines=["go-back-n"])
    experiment = page.ScenarioRuns(scenario, [summaries_of(part) for part in scenario.parts])
    root = ElementTree.fromstring(experiment.plot())
    check_lines(root, 3)
    assert {"one", "two", "mrc", "go-back-n", "target, 90%", "share, %"} <= set(texts(root))
    text = page.render([experiment], range(1, 2))
    assert "1 of 1 checks met; virtual time, seed 1" in text
    assert '<td>share, one<td class="number">1<td class="note">[1, 1]' in text


def test_render__without_checks(summaries: list[Summary]) -> None:
    text = page.render([page.ScenarioRuns(parse(checks=[]), [summaries])], range(1, 2))
    assert "<p>virtual time, seed 1" in text and "checks met" not in text


def test_of_paper__in_the_order_of_the_figures() -> None:
    named = ("section 5.1", "Fig. 12-13", "", "Fig. 9b", "Fig. 9a")
    found = page.of_paper([page.ScenarioRuns(parse(figure=figure), []) for figure in named])
    assert [each.scenario.figure for each in found] == [
        "Fig. 9a", "Fig. 9b", "Fig. 12-13", "section 5.1"
    ]  # fmt: skip


def test_render__says_what_is_not_met(summaries: list[Summary]) -> None:
    text = page.render([page.ScenarioRuns(parse(), [summaries])], range(1, 3))
    assert "1 of 2 checks met; virtual time, median of seeds 1 to 2" in text
    assert '<td>c &lt; d<td class="number">none<td' in text
    assert "&lt;= 3" in text and "1 not met" in text
    assert "The paper: x &lt; y" in text
    assert not re.search(r'(src|href)="[^#]', text)  # nothing to fetch


@pytest.mark.parametrize(("value", "note"), [(1.0004, False), (1.01, True)])
def test_render__a_value_above_1_has_a_note(value: float, note: bool) -> None:
    scenario = parse(checks=[{"name": "share", "measure": "goodput", "at_least": 0.5}], faults=[])
    (summary,) = summaries_of(scenario)
    more = replace(summary, measured=replace(summary.measured, values=(value,)))
    text = page.render([page.ScenarioRuns(scenario, [[more]])], range(1, 2))
    assert ("A value above 1 is more than" in text) is note


@pytest.mark.more
def test_svg__same_bytes_from_the_same_data_and_nothing_to_fetch(summaries: list[Summary]) -> None:
    drawn = page.draw_scenario(parse(), summaries)
    assert drawn == page.draw_scenario(parse(), summaries)
    assert set(re.findall(r"https?://[^\"]*", drawn)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(script|image|a)\b|url\((?!#)|<g id=", drawn)


def test_standalone__every_colour_is_of_both_themes() -> None:
    chart = drawing.Chart("x", "y", 1, 1)
    chart.lines.append(drawing.ChartLine("here", [drawing.ChartPoint(0, 0, 0.5, 1)]))
    assert not re.findall(r"#[0-9a-f]{6}\b", chart.svg())
    style = ElementTree.fromstring(drawing.standalone(chart.svg()))[0].text or ""
    light, dark = style.split("@media(prefers-color-scheme:dark)")
    for theme, css in ((drawing.LIGHT, light), (drawing.DARK, dark)):
        assert len(set(theme.values())) == len(theme)
        assert all(f"--{name}:{colour};" in css for name, colour in theme.items())
    used = set(re.findall(r"var\(--([\w-]+)\)", drawing.standalone(chart.svg())))
    assert {"ink", "paper", "line-0"} <= used <= set(drawing.LIGHT)


def test_svg__text_of_a_file_is_text() -> None:
    """Text is neither markup nor a formula; its letters may be missing in the layout's font."""
    label = "</svg><script>$x^2$ 東京"
    chart = drawing.Chart(label, label, 1, 1)
    chart.bands.append((0, 1, f'{label}" id="'))
    chart.lines.append(drawing.ChartLine(label, [drawing.ChartPoint(0, 0, 0.5, 1)]))
    root = ElementTree.fromstring(chart.svg())
    assert texts(root).count(label) == 3
    assert root.findtext(f".//{SVG}title") == f'{label}" id="'
    assert root.find(f".//{SVG}script") is None


@pytest.mark.parametrize("options", [["lossy-ev", "--plot"], ["report", "--output"]])
def test_sim__says_at_once_what_pictures_need(
    options: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["sim", *options, str(tmp_path / "out")]) == 2
    assert "pip install 'mrc-transport[plot]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [["lossy-ev", "--plot"], ["report", "--output"]])
def test_sim__says_at_once_what_it_cannot_write(
    options: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    where = tmp_path / "none/page"
    assert main(["sim", *options, str(where)]) == 1
    told = capsys.readouterr()
    assert (told.out, told.err[-60:].count("no such file or directory\n")) == ("", 1)


def test_main__loads_no_library_of_pictures() -> None:
    modules = "[m for m in ('matplotlib', 'jinja2') if m in sys.modules]"
    code = f"import sys, mrc.sim.cli; print({modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# ---- `mrc sim` as typed --------------------------------------------------------------------------


def test_sim__ends_in_the_middle_of_c_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    over = threading.Event()

    def run_trial(*_: object, **__: object) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # C code does not look for it
        os.kill(os.getpid(), signal.SIGINT)
        over.wait(PATIENCE)

    monkeypatch.setattr(cli, "run_trial", run_trial)
    assert main(["sim", "lossy-ev", "--set", "variants=[]", "--quiet"]) == 130
    over.set()
    assert capsys.readouterr().err == "mrc sim run: interrupted\n"


def test_schema__names_of_states() -> None:
    assert schema("sim run")["$defs"]["CcKind"]["enum"] == list(CcKind.__members__)
