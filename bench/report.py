# SPDX-License-Identifier: Apache-2.0
"""Where a benchmark ran, and its page of plots."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bed import HOSTS, core
from program import ROOT

from mrc.sim import drawing

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
    return drawing.fill(template, title=title, result=result, plots=plots, more=more)
