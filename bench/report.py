# SPDX-License-Identifier: Apache-2.0
"""The result of a run as one JSON object, as tables on the terminal, and as a page of plots."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bed import HOSTS, core
from chart import goodput_svg
from checks import Check
from program import ROOT
from rich.console import Console
from rich.table import Table

from mrc.sim import drawing

SCHEMA = 1
_SYSCTLS = ("net/core/rmem_max", "net/core/wmem_max", "net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem")
# Metric, heading, divisor, digits.
_COLUMNS = (
    ("goodput_bits_per_second", "Gbit/s", 1e9, 2),
    ("messages_per_second", "messages/s", 1, 0),
    ("p50_ns", "p50 us", 1e3, 1),
    ("p99_ns", "p99 us", 1e3, 1),
    ("p999_ns", "p99.9 us", 1e3, 1),
    ("sender_cpu_seconds_per_gib", "s/GiB out", 1, 3),
    ("receiver_cpu_seconds_per_gib", "s/GiB in", 1, 3),
    ("packets_per_gib", "packets/GiB", 1, 0),
    ("syscalls_per_gib", "calls/GiB", 1, 0),
    ("retransmissions", "sent again", 1, 0),
)


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


def document(
    parameters: Mapping[str, Any],
    where: Mapping[str, Any],
    beds: Sequence[Mapping[str, Any]],
    checks: Sequence[Check],
    skipped: Mapping[str, str],
) -> dict[str, Any]:
    """The whole result of a run."""
    return {
        "schema": SCHEMA,
        "commit": commit(),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": where,
        "parameters": parameters,
        "beds": beds,
        "checks": [{**asdict(check), "met": check.met} for check in checks],
        "skipped": skipped,
    }


def print_tables(console: Console, result: Mapping[str, Any]) -> None:
    """Prints a table for each bed, with medians and their spread, and the checks."""
    for bed in result["beds"]:
        table = Table(title=bed["title"])
        table.add_column("", no_wrap=True)
        for _, heading, _, _ in _COLUMNS:
            table.add_column(heading, justify="right")
        table.add_column("a plane", justify="right")
        for row in bed["rows"]:
            cells = [_cell(row["metrics"], *column) for column in _COLUMNS]
            table.add_row(row["name"], *cells, _shares(row["metrics"]))
        console.print(table)
    table = Table(title="Checks")
    for heading in ("", "value", "target", ""):
        table.add_column(heading)
    for check in result["checks"]:
        met = "[green]met[/]" if check["met"] else "[red]not met[/]"
        target = f"{check['relation']} {check['target']:g}"
        table.add_row(check["name"], f"{check['value']:.3g}", target, met)
    console.print(table)


def _cell(metrics: Mapping[str, Any], name: str, heading: str, divisor: float, digits: int) -> str:
    if name not in metrics:
        return ""
    median, low, high = (metrics[name][key] / divisor for key in ("median", "min", "max"))
    rounds = len(metrics[name]["rounds"])
    shown = rounds > 1 and name == "goodput_bits_per_second"
    spread = f" ±{(high - low) / 2 / median:.0%}" if shown else ""
    return f"{median:,.{digits}f}{spread}"


def _shares(metrics: Mapping[str, Any]) -> str:
    """The smallest and the largest share of a plane in the bytes sent."""
    shares = metrics.get("plane_shares")
    return f"{min(shares):.0%}-{max(shares):.0%}" if shares else ""


def page(title: str, result: Mapping[str, Any], plots: Sequence[tuple[str, str]], more: str) -> str:
    """One HTML page of plots, each with a heading or none, without external links."""
    template = Path(__file__).with_name("plots.html")
    return drawing.fill(template, title=title, result=result, plots=plots, more=more)


def beds_page(result: Mapping[str, Any]) -> str:
    """A page with a plot for each bed."""
    plots = [("", goodput_svg(bed["title"], bed["rows"])) for bed in result["beds"]]
    return page("mrc and other transports", result, plots, "")
