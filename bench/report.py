# SPDX-License-Identifier: Apache-2.0
"""Where a benchmark ran, and its page of plots."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bed import HOSTS, core
from program import ROOT

from mrc.sim import drawing
from mrc.sim.drawing import LIGHT, LINES, draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH, _TOP, _STEP = 760, 30, 18
_SYSCTLS = ("net/core/rmem_max", "net/core/wmem_max", "net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem")


def machine() -> dict[str, Any]:
    """The properties of this machine that affect the results."""
    cpu = Path("/proc/cpuinfo").read_text().split("model name", 1)[-1].split("\n", 1)[0]
    policy = {0: "other", 1: "fifo", 2: "rr"}.get(os.sched_getscheduler(0), "?")
    return {
        "kernel": platform.release(),
        "cpu": cpu.strip(" \t:"),
        "cores": os.cpu_count(),
        "pinned": {f"h{host}": core(host) for host in HOSTS},
        "scheduler": policy,
        "load_at_start": list(os.getloadavg()),
        "python": platform.python_version(),
        "sysctls": {name: Path("/proc/sys", name).read_text().strip() for name in _SYSCTLS},
    }


def file_system(folder: str) -> str:
    """The kind of a folder's file system, such as "ext2/ext3" or "tmpfs"."""
    command = ["stat", "--file-system", "--format", "%T", folder]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def commit() -> str:
    if shutil.which("git") is None:
        return "unknown"
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def page(title: str, result: Mapping[str, Any], plots: Sequence[tuple[str, str]], more: str) -> str:
    """One HTML page of plots, each with a heading or none, without external links."""
    template = Path(__file__).with_name("plots.html")
    return drawing.fill_page(template, title=title, result=result, plots=plots, more=more)


def goodput_svg(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """One picture of a bed's rows with goodput. mrc's rows have their own colour."""
    bars = [row for row in rows if "goodput_bits_per_second" in row["metrics"]]

    def paint(figure: Figure) -> None:
        figure.set_layout_engine("constrained")
        axes = figure.add_subplot(frameon=False, ylim=(max(len(bars), 1) - 0.5, -0.5), xticks=[])
        axes.set_title(f"{title}: goodput, Gbit/s", loc="left", fontsize=11)
        axes.set_yticks(range(len(bars)), [row["name"] for row in bars])
        for place, row in enumerate(bars):
            found = row["metrics"]["goodput_bits_per_second"]
            middle, low, high = (found[name] / 1e9 for name in ("median", "min", "max"))
            colour = LINES[0 if row["name"].startswith(("mrc", "file, mrc")) else 1]
            axes.barh(place, middle, height=0.7, color=colour, alpha=0.7)
            axes.hlines(place, low, high, color=LIGHT["ink"], linewidth=1)
            axes.annotate(
                f"{middle:.3g}", (high, place), (6, 0), textcoords="offset points", va="center"
            )

    return draw(_WIDTH, _TOP + len(bars) * _STEP, title, paint)
