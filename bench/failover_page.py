# SPDX-License-Identifier: Apache-2.0
"""A result of `bench/failover` as one HTML page without external links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import failover_svg as svg
from failover_figures import BACK_SHARE, LOW_SHARE, WINDOW_SECONDS, Run, duration, story_of
from figures import verdict

from mrc.sim import drawing

_TEMPLATE = Path(__file__).with_name("failover.html")
_HEADS = ("delivered", "of capacity", "longest stall", "sent again")


def page(result: Mapping[str, Any]) -> str:
    """The whole page."""
    story = story_of(result)
    scale = result["bed"]["planes"], result["bed"]["plane_payload_bits_per_second"]
    phases = story[0]["figures"]["phases"]
    healed = [part["name"] for part in phases[1:] if part["planes"] == phases[0]["planes"]]
    return drawing.fill_page(
        _TEMPLATE,
        result=result,
        bed=result["bed"],
        story=story,
        others=[run for run in result["runs"] if run not in story],
        draw_story=lambda runs: svg.story_svg(runs, *scale),
        draw_moments=lambda run: svg.moments_svg(run, *scale),
        heads=_HEADS,
        healed=healed,
        changed=[part["name"] for part in phases[1:]],
        whole=lambda run: _whole(run, healed),
        below=_below,
        low=f"{LOW_SHARE:.0%}",
        back=f"{BACK_SHARE:.0%}",
        window=f"{WINDOW_SECONDS:.3g}",
        verdict=lambda check: verdict(check, result.get("busy", "")),
        parameters=_parameters(result),
    )


def _whole(run: Run, healed: Sequence[str]) -> list[str]:
    """Figures of the whole run, and the time until it used each healed capacity."""
    found = run["figures"]
    return [
        f"{found['delivered_bytes'] / 1e9:.2f} GB",
        f"{found['delivered_bytes'] / found['capacity_bytes']:.0%}",
        duration(found["longest_stall_of_a_stream_seconds"]),
        f"{found['retransmitted_bytes'] / 1e6:.1f} MB",
        *(duration(p["back_seconds"]) for p in found["phases"] if p["name"] in healed),
    ]


def _below(run: Run) -> list[str]:
    return [duration(part["below_seconds"]) for part in run["figures"]["phases"][1:]]


def _parameters(result: Mapping[str, Any]) -> dict[str, Any]:
    machine, bed = result["machine"], result["bed"]
    pairs = {
        "commit": result["commit"],
        "ended": result["ended"],
        "command": result["command"],
        "kernel": f"Linux {machine['kernel']}",
        "CPU": f"{machine['cpu']}, {machine['cores']} cores; no process is pinned",
        "load at the start": ", ".join(f"{load:.2f}" for load in machine["load_at_start"]),
        "test bed": f"{bed['planes']} planes x {bed['t1']} T1,"
        f" {bed['rate_bits_per_second'] / 1e6:g} Mbit/s a link, MTU {bed['mtu']}, Linux forwards"
        " by uSID",
        "payload of a plane": f"{bed['plane_payload_bits_per_second'] / 1e6:.0f} Mbit/s in full"
        " packets of mrc",
    }
    if busy := result.get("busy"):
        pairs["the machine"] = busy
    pairs |= dict(machine["sysctls"])
    pairs |= {
        f"{run['contender']}, {run['scenario']}": f"{run['what']}; measured: {run['measured']}"
        + f"; {run['stolen_cpu_seconds']:.2f} s of CPU time stolen by the hypervisor"
        + (f"; ended early: {run['ended']}" if run["ended"] else "")
        for run in result["runs"]
    }
    return pairs | {f"skipped: {name}": why for name, why in result["skipped"].items()}
