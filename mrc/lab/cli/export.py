# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed export`: writes a topology for other tools, which build it without mrc."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from mrc.cli.arguments import add
from mrc.cli.exits import UsageError
from mrc.cli.output import Output
from mrc.errors import ConfigError
from mrc.lab.containers import containerlab, lab
from mrc.lab.results import Exported
from mrc.lab.scripts import netns_script
from mrc.linux.files import write_whole
from mrc.testbed.cli.main import Action, Needs
from mrc.testbed.cli.plan import add_shape, shape_of
from mrc.testbed.plan import make_plan
from mrc.testbed.shape import NOTHING, as_argument_error
from mrc.units import counted

DESCRIPTION = """\
Write a topology, as plan shows it, for other tools. A namespace script builds
the same namespaces with ip(8) and runs commands in them. containerlab builds
containers, also over several machines, with Linux or SONiC as switches. Faults
and status require mrc testbed up.
"""
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}")
FORMS = """
--netns-script SCRIPT  write a bash script with the actions up, down and exec; -: on stdout
--containerlab FOLDER  write FOLDER/NAME.clab.yml and the files of its nodes
--switches FOLDER      the same with SONiC as switches: for each of them its config_db.json for
                       SONiC, its frr.conf, and its nvue.sh for Cumulus Linux
"""
IMAGE = """
--image IMAGE         container image of the hosts, with --containerlab also of the switches
                      [%(default)s]
--switch-image IMAGE  container image of the switches, for --switches [%(default)s]
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    group = parser.add_mutually_exclusive_group(required=True)
    add(group, FORMS)
    images = {"image": {"default": "mrc"}, "switch_image": {"default": "docker-sonic-vs:latest"}}
    add(parser, IMAGE, **images)
    add_shape(parser)


def run(args: argparse.Namespace) -> int:
    out = Output.of(args)
    for option, image in (("--image", args.image), ("--switch-image", args.switch_image)):
        if not _IMAGE.fullmatch(image):
            raise UsageError(args.prog, f"{option} {image!r} is not the name of a container image")
    if args.netns_script == "-" and args.json:
        raise UsageError(args.prog, "--netns-script -: excludes --json")
    shape = shape_of(args)
    if shape.outside != NOTHING:
        raise UsageError(args.prog, "other tools join no test bed to the world: only up does")
    with as_argument_error():
        plan = make_plan(args.name, shape)
        if args.netns_script == "-":
            sys.stdout.write(netns_script(plan))
            return 0
        if args.netns_script:
            path = Path(args.netns_script)
            files, then = {path.name: netns_script(plan)}, f"{_runnable(path)} up"
            written = _write(path.parent, files)
            path.chmod(0o755)
        else:
            if args.switches:
                files = lab(plan, args.image, args.switch_image)
            else:
                files = containerlab(plan, args.image)
            written = _write(Path(args.switches or args.containerlab), files)
            then = f"containerlab deploy -t {written[0]}"
    count = counted(len(written), "file") if len(written) > 1 else written[0]
    out.text(f"wrote {count}; build it with: {then}")
    out.result(Exported(name=args.name, nodes=len(plan.nodes), files=tuple(written)))
    return 0


def _runnable(path: Path) -> str:
    return str(path) if "/" in str(path) else f"./{path}"


def _write(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Writes the files; returns their paths."""
    for name, text in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode())
        except OSError as exc:
            raise ConfigError(f"{path}: {exc.strerror}") from exc
    return [str(folder / name) for name in files]


ACTIONS = {"export": Action(run, add_arguments, Needs.NONE)}
