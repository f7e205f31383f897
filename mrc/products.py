# SPDX-License-Identifier: Apache-2.0
"""What the products bring to the core: commands, findings of `mrc doctor`, results. The core names
their modules here and in no import: a tree without a product has less of each.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from mrc.errors import ConfigError

COMMANDS = {
    "send": "mrc.transfer.cli.send",
    "recv": "mrc.transfer.cli.recv",
    "perf": "mrc.perf.cli",
    "paths": "mrc.cli.paths",
    "top": "mrc.cli.top",
    "key": "mrc.cli.key",
    "dissect": "mrc.dissect.cli",
    "conform": "mrc.conform.cli",
    "run": "mrc.agent.cli.run",
    "agent": "mrc.agent.cli.agent",
    "testbed": "mrc.testbed.cli.main",
    "demo": "mrc.demo.cli",
    "lab": "mrc.lab.cli",
    "sim": "mrc.sim.cli",
    "doctor": "mrc.doctor",
    "schema": "mrc.cli.schema",
    "completion": "mrc.cli.completion",
}
"""The module of each command of `mrc`, in the order of its help"""

RESULTS: dict[str, tuple[str, ...]] = {
    "send": ("transfer.results.Transfer",),
    "recv": ("transfer.results.Transfer",),
    "perf": ("perf.results.Perf", "perf.results.PerfFailed"),
    "perf --server": ("perf.results.PerfServed",),
    "perf --json-stream": (
        "perf.results.StartEvent", "perf.results.IntervalEvent", "perf.results.TestEvent",
        "perf.results.EndEvent",
    ),
    "paths": ("cli.paths.Paths",),
    "top": ("cli.top.Top", "view.feed.PageAddress"),
    "key": ("cli.key.KeyFile",),
    "dissect": ("dissect.cli.Dissected",),
    "dissect --readings": ("conform.report.ReadingCounts",),
    "testbed plan": ("testbed.results.Planned", "testbed.results.Topologies"),
    "testbed export": ("lab.export.Export",),
    "testbed import": ("lab.ocdai.ImportedTopology",),
    "testbed join": ("lab.export.HostSetup",),
    "testbed up": ("testbed.results.Built",),
    "testbed down": ("testbed.results.Removed",),
    "testbed status": ("testbed.results.Status", "testbed.results.NotUp"),
    "testbed view": ("view.feed.PageAddress",),
    "testbed capture": ("testbed.capture.Captured",),
    "testbed fail": ("testbed.results.Injection",),
    "testbed run": ("testbed.schedule.Scheduled",),
    "testbed run --over": ("sim.compare.Workload",),
    "testbed heal": ("testbed.results.Healed",),
    "testbed drain": ("testbed.results.Drained",),
    "testbed undrain": ("testbed.results.Drained",),
    "demo": ("demo.cli.Demo",),
    "lab": ("lab.cli.Lessons", "lab.cli.Lesson"),
    "sim list": ("sim.results.Scenarios",),
    "sim run": ("sim.results.Experiment",),
    "sim report": ("sim.results.Report",),
    "sim sweep": ("sim.results.Sweep",),
    "conform run": ("conform.report.Conformance",),
    "conform list": ("conform.case.Cases",),
    "conform show": ("conform.case.Cases",),
    "conform readings": ("conform.readings.Readings",),
    "conform vectors": ("conform.exchanges.Vectors",),
    "conform judge": ("conform.report.CaptureReport",),
    "doctor": ("doctor.Doctor",),
    "agent": ("agent.socket.AgentProfiles",),
}  # fmt: skip
"""The results that each command prints, by their place in `mrc`. Every command may print a Failure
instead, `results.Failure`."""

FINDINGS = (
    "mrc.agent.libraries",
    "mrc.doctor",
    "mrc.testbed.findings",
    "mrc.torch.build",
)
"""The modules whose `examine` returns findings for `mrc doctor`, in the order of its rows; those
of this host come first."""

PAGE = "mrc.view.cli"
"""The way of `mrc top --web`: `add_port` adds its option, `listener` opens its socket, and `serve`
shows the page there."""

KEEPER = "mrc.testbed.rootless"
"""Its `run_folder` is the /run of this user's test beds, where `mrc top --local` looks too."""

READINGS = "mrc.conform.report"
"""Prints what a capture shows of readings, for `mrc dissect --readings`: `readings` finds it, and
`reading_lines` are its lines for people."""


def has(module: str) -> bool:
    """Whether a module is in this tree."""
    try:
        return bool(module) and find_spec(module) is not None
    except ModuleNotFoundError:  # of a package that is not there either
        return False


def commands() -> tuple[str, ...]:
    """The commands that are in this tree."""
    return tuple(name for name, module in COMMANDS.items() if has(module))


def need(module: str, who: str) -> ModuleType:
    """A module of a product; raises ConfigError, which says `who` needs it, in a tree without."""
    if (found := load(module)) is None:
        raise ConfigError(f"{who} needs {module}, which is not installed")
    return found


def load(module: str) -> ModuleType | None:
    """A module of a product, or None in a tree without it."""
    return import_module(module) if has(module) else None
