# SPDX-License-Identifier: Apache-2.0
"""A result of `bench/failover` as one HTML page that needs no network. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import failover_svg as svg
from failover_figures import BACK_SHARE, LOW_SHARE, WINDOW_SECONDS
from failover_scenario import STORY

_STYLE = f"""
:root {{ color-scheme: light dark; {svg.variables(svg.LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {svg.variables(svg.DARK)} }} }}
body {{ font: 15px/1.55 system-ui, sans-serif; max-width: 61em; margin: 2em auto; padding: 0 1em;
  color: var(--ink); background: var(--paper); }}
h1 {{ font-size: 1.7em; line-height: 1.25; margin-bottom: .3em; }}
h2 {{ font-size: 1.2em; margin: 2.2em 0 .4em; }}
figure {{ margin: 1em 0; }} figure svg {{ width: 100%; height: auto; display: block; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .93em; margin-bottom: 1.2em; }}
th, td {{ text-align: right; padding: .3em .7em; white-space: nowrap;
  font-variant-numeric: tabular-nums; }}
th {{ font-weight: 600; vertical-align: bottom; }}
tr > :first-child {{ text-align: left; padding-left: 0; }}
thead tr:last-child > * {{ border-bottom: 1px solid var(--grid); }}
tbody tr > * {{ border-bottom: 1px solid var(--grid); }}
th.group {{ text-align: center; color: var(--note); font-weight: 400; }}
.ours {{ color: var(--ours); font-weight: 600; }}
.note {{ color: var(--note); font-size: .93em; }}
.met {{ color: var(--met); }} .unmet {{ color: var(--unmet); font-weight: 600; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .15em 1.2em; font-size: .93em; }}
dt {{ color: var(--note); }} dd {{ margin: 0; overflow-wrap: anywhere; }}
@media print {{ body {{ margin: 0; max-width: none; font-size: 11px; }}
  figure, table, dl {{ break-inside: avoid; }} }}
{svg.STYLE}
"""


Run = Mapping[str, Any]
_CLASS = {"mrc": ' class="ours"'}


def page(result: Mapping[str, Any]) -> str:
    """The whole page."""
    story = [run for run in result["runs"] if run["scenario"] == STORY.name]
    others = [run for run in result["runs"] if run["scenario"] != STORY.name]
    bed = result["bed"]
    planes, plane_bps = bed["planes"], bed["plane_payload_bits_per_second"]
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>mrc: planes fail and return</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
        "<h1>Planes fail and return: mrc and its rivals</h1>",
        f"<p>{_lead(bed, story)}</p>",
        _figure(svg.story_svg(story, planes, plane_bps)),
        "<h2>Figures</h2>",
        _figures_table(story),
        f'<p class="note">{_method()}</p>',
    ]
    ours = next((run for run in story if run["contender"] == "mrc"), None)
    if ours is not None:
        parts += ["<h2>mrc in the first moments of each fault</h2>",
                  _figure(svg.moments_svg(ours, planes, plane_bps))]  # fmt: skip
    for run in others:
        parts += [f"<h2>{escape(run['title'])}</h2>",
                  _figure(svg.story_svg([run], planes, plane_bps))]  # fmt: skip
    parts += ["<h2>What mrc must reach</h2>",
              f'<p class="note">{_repeats(result["repeats"])}</p>',
              _checks_table(result["checks"])]  # fmt: skip
    parts += ["<h2>Parameters</h2>", _parameters(result), "</body>\n</html>\n"]
    return "\n".join(parts)


def _figure(drawing: str) -> str:
    return f"<figure>\n{drawing}</figure>"


def _lead(bed: Mapping[str, Any], story: Sequence[Run]) -> str:
    gbps = bed["planes"] * bed["rate_bits_per_second"] / 1e9
    return (
        f"One bulk transfer between two hosts with {bed['planes']} links of"
        f" {bed['rate_bits_per_second'] / 1e6:g} Mbit/s, {gbps:g} Gbit/s in all. On the way"
        " plane 1 falls silent, then its link at the sender's NIC goes down, then it loses a fifth"
        " of its packets, then it has a tenth of its rate. All ran in turn, through the same"
        " events on the same test bed: "
        f"{escape('; '.join(run['contender'] for run in story))}."
        " The dashed line is what the planes without a fault can carry, and what is left of a slow"
        " one."
    )


def _method() -> str:
    return (
        f"Below {LOW_SHARE:.0%}: time in which goodput, as the mean over the {WINDOW_SECONDS:.3g} s"
        " that follow, was below that share of the dashed line, from the change to the next one."
        f" Used again: from the end of a fault to goodput of {BACK_SHARE:.0%} of all planes. The"
        " longest stall is the longest time in which a stream delivered nothing to its application;"
        " for a flow a plane, of any of them. Goodput is drawn in bins of 10 ms. A silent plane"
        " drops every packet at the switches where packets enter it, in both directions, while all"
        " links stay up; a link that is down has lost its carrier on both sides."
    )


def _repeats(n: int) -> str:
    return (
        f"Of {n} runs of mrc: the median counts, and what is drawn above is the run that delivered"
        " the median."
        if n > 1
        else "Of one run of mrc."
    )


# ---- tables -------------------------------------------------------------------------------------


def _figures_table(story: Sequence[Run]) -> str:
    phases = story[0]["figures"]["phases"]
    healed = [part["name"] for part in phases[1:] if part["planes"] == phases[0]["planes"]]
    changed = [part["name"] for part in phases[1:]]

    def whole(run: Run) -> list[str]:
        found = run["figures"]
        again = [svg.duration(p["back_seconds"]) for p in found["phases"] if p["name"] in healed]
        return [
            f"{found['delivered_bytes'] / 1e9:.2f} GB",
            f"{found['delivered_bytes'] / found['capacity_bytes']:.0%}",
            svg.duration(found["longest_stall_of_a_stream_seconds"]),
            f"{found['retransmitted_bytes'] / 1e6:.1f} MB",
            *again,
        ]

    def below(run: Run) -> list[str]:
        return [svg.duration(part["below_seconds"]) for part in run["figures"]["phases"][1:]]

    heads = ["delivered", "of capacity", "longest stall", "sent again"]
    return _table(
        story, (("", heads), ("healed capacity used again after", healed)), whole
    ) + _table(story, ((f"time below {LOW_SHARE:.0%} after", changed),), below)


def _table(
    story: Sequence[Run],
    groups: Sequence[tuple[str, Sequence[str]]],
    cells: Callable[[Run], Sequence[str]],
) -> str:
    """A row for each contender, with columns that stand in groups."""
    above = "".join(f'<th class="group" colspan="{len(names)}">{g}' for g, names in groups)
    below = "".join(f"<th>{escape(name)}" for _, names in groups for name in names)
    rows = "\n".join(
        f"<tr{_CLASS.get(run['contender'], '')}><td>{escape(run['contender'])}"
        + "".join(f"<td>{cell}" for cell in cells(run))
        for run in story
    )
    return (
        f'<div class="scroll"><table>\n<thead><tr><th>{above}</tr>\n<tr><th>contender{below}</tr>'
        f"</thead>\n<tbody>{rows}</tbody>\n</table></div>\n"
    )


def _checks_table(checks: Sequence[Mapping[str, Any]]) -> str:
    rows = "\n".join(
        f"<tr><td>{escape(check['name'])}<td>{check['value']:.3g}"
        f"<td>{check['smallest']:.3g} - {check['largest']:.3g}"
        f"<td>{escape(check['relation'])} {check['target']:g}"
        + ('<td class="met">met' if check["met"] else '<td class="unmet">not met')
        for check in checks
    )
    return (
        '<div class="scroll"><table>\n'
        "<thead><tr><th>check<th>median<th>from - to<th>target<th></tr></thead>\n"
        f"<tbody>{rows}</tbody>\n</table></div>"
    )


def _parameters(result: Mapping[str, Any]) -> str:
    machine, bed = result["machine"], result["bed"]
    pairs = {
        "commit": result["commit"],
        "ended": result["ended"],
        "command": result["command"],
        "kernel": f"Linux {machine['kernel']}",
        "CPU": f"{machine['cpu']}, {machine['cores']} cores; nothing is pinned to one",
        "load at the start": ", ".join(f"{load:.2f}" for load in machine["load_at_start"]),
        "test bed": f"{bed['planes']} planes x {bed['t1']} T1,"
        f" {bed['rate_bits_per_second'] / 1e6:g} Mbit/s a link, MTU {bed['mtu']}, Linux forwards"
        " by uSID",
        "payload of a plane": f"{bed['plane_payload_bits_per_second'] / 1e6:.0f} Mbit/s in full"
        " packets of mrc",
    }
    pairs |= dict(machine["sysctls"])
    pairs |= {
        f"{run['contender']}, {run['scenario']}": f"{run['what']}; measured: {run['measured']}"
        + f"; {run['stolen_cpu_seconds']:.2f} s of CPU time stolen by the hypervisor"
        + (f"; ended early: {run['ended']}" if run["ended"] else "")
        for run in result["runs"]
    }
    pairs |= {f"left out: {name}": why for name, why in result["skipped"].items()}
    return (
        "<dl>\n"
        + "\n".join(f"<dt>{escape(k)}<dd>{escape(str(v))}" for k, v in pairs.items())
        + "\n</dl>"
    )
