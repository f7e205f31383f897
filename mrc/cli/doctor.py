# SPDX-License-Identifier: Apache-2.0
"""`mrc doctor`: which features this machine supports, and how to enable the others."""

from __future__ import annotations

import argparse

from mrc import doctor, products
from mrc.cli.exits import Exit
from mrc.cli.output import Output, add_options
from mrc.cli.runner import run_async
from mrc.results.doctor import Doctor, Finding, State

HELP = "check which features this machine supports, and what is missing"
EXAMPLES = """\
examples:
  mrc doctor                           exit code 0 if mrc can run here
  mrc doctor --json | jq '.findings[] | select(.state != "ok")'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    brought = filter(None, map(products.load, products.FINDINGS))
    findings = [
        *doctor.examine_host(run_async),
        *(row for each in brought for row in each.examine()),
    ]
    good = doctor.can_run(findings)
    out.text("\n".join(map(line, findings)))
    out.text(f"\n{summary(findings, can_run=good)}")
    out.result(Doctor(can_run=good, findings=tuple(findings)))
    return Exit.OK if good else Exit.FAILED


def line(finding: Finding) -> str:
    text = f"{finding.state:8} {finding.name:20} {finding.found}"
    if finding.state is not State.OK:
        text += f"; {finding.consequence}; remedy: {finding.remedy}"
    return text


def summary(findings: list[Finding], *, can_run: bool) -> str:
    counts = {state: sum(each.state is state for each in findings) for state in State}
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return f"{told}: mrc {'can' if can_run else 'CANNOT'} run here"
