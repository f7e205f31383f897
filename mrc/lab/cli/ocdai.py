# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed import`: makes a topology file from a topology plan of OCDAI."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mrc.cli.arguments import add
from mrc.cli.exits import UsageError
from mrc.cli.output import Output
from mrc.errors import ConfigError
from mrc.fabric import document
from mrc.lab import ocdai
from mrc.lab.ocdai import topology_of
from mrc.lab.results import ImportedTopology
from mrc.linux.files import write_whole
from mrc.testbed.cli.main import Action, Needs
from mrc.units import counted

DESCRIPTION = """\
Make a topology file from a topology plan of OCP's Open Cluster Designs, a
topology-map.yaml. Its fabrics with the most bandwidth become the planes, their
leaves T0s, their spines T1s, and each port of a NIC a host.
"""
OPTIONS = """
file FILE          topology-map.yaml
--output TOPOLOGY  write the topology file there [stdout]
--fabrics NAMES    the fabrics that are planes, separated by commas [those with most bandwidth]
"""
_MOST_BYTES = 1 << 20  # they take some five seconds
HINT = "reading YAML requires PyYAML: pip install 'mrc-transport[yaml]'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add(parser, OPTIONS)


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    if args.json and args.output is None:
        raise UsageError(args.prog, "--json requires --output")
    if find_spec("yaml") is None:
        raise UsageError(args.prog, HINT)
    fabrics = args.fabrics.split(",") if args.fabrics else []
    found = topology_of(ocdai.parse(_load(args.file), args.file), fabrics)
    if args.output is None:
        sys.stdout.write(found.text)
        return 0
    try:
        write_whole(Path(args.output), found.text.encode())
    except OSError as exc:
        raise ConfigError(f"{args.output}: {exc.strerror}") from exc
    shape = found.topology
    switches = f"{counted(shape.t0, 'T0')} and {counted(shape.t1, 'T1')}"
    hosts = counted(len(shape.host_numbers()), "host")
    counts = f"{hosts}, {counted(shape.planes, 'plane')} of {switches}"
    lines = [f"wrote {args.output}: {counts}", *found.notes]
    out.text("\n".join([*lines, f"show it with: mrc testbed plan {args.output}"]))
    out.result(
        ImportedTopology(
            file=args.output,
            hosts=len(shape.host_numbers()),
            planes=shape.planes,
            t0=shape.t0,
            t1=shape.t1,
            notes=found.notes,
        )
    )
    return 0


def _load(path: str) -> Any:
    return document.parsed(document.text_of(Path(path), path, _MOST_BYTES), path, _yaml, "YAML")


def _yaml(text: str) -> Any:
    """Raises ValueError with a short cause."""
    import yaml  # the optional extra

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        raise ValueError(f"{where}{getattr(error, 'problem', None) or 'no text'}") from error


ACTIONS = {"import": Action(run, add_arguments, Needs.NONE)}
