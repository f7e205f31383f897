# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed`: builds hosts and a fabric from network namespaces, and injects faults."""

from __future__ import annotations

import argparse
from collections.abc import Callable, ItemsView, ValuesView
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any, Literal

from msgspec import Struct

from mrc import products
from mrc.cli.output import Output, UsageError
from mrc.errors import ArgumentError, StateError
from mrc.testbed.shape import DEFAULT_NAME
from mrc.testbed.signals import interruptible, undisturbed


class Action(Struct, frozen=True):
    """An action of `mrc testbed`."""

    run: Callable[[argparse.Namespace], int]
    """returns the exit code"""
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None
    needs: Literal["nothing", "name", "up", "new"] = "up"
    """the test bed that it needs; nothing: it may be of another user, or not exist; name: it may be
    down; new: the action makes it
    """
    prints: bool = True
    """it has --json and the other options of what a command prints"""
    prepared: Callable[[argparse.Namespace], AbstractContextManager[Any]] | None = None
    """what surrounds it, from before it enters the namespaces of an ordinary user's test beds"""


HELP = "build hosts and planes from network namespaces, inject faults"
EXAMPLES = """\
examples:
  mrc testbed up                       2 hosts, 4 planes with 2 T1s, 500 Mbit/s
  mrc testbed exec h1 -- mrc recv --output /tmp/in
  mrc testbed exec h0 -- mrc send big.bin h1
  mrc testbed exec h0 -- ping h1.p2    in plane 2; h1: on all planes; h1.mgmt
  mrc testbed exec --mptcp h0 -- iperf3 -c h1
  mrc testbed fail plane:2             plane 2 drops all packets; links stay up
  mrc testbed fail t1:3.0 --loss 20%   T1 0 of plane 3 drops 20% of its packets
  mrc testbed fail plane:2 --delay 1ms --reorder 1%
  mrc testbed fail 't0:1.0>h0' --mtu 1500    one direction drops larger packets
  mrc testbed heal all                 end all faults
  mrc testbed drain t1:2.0             move traffic off this T1 without loss; undrain
  mrc testbed run faults.toml          inject the faults scheduled in this file
  mrc testbed run ring --over mrc,tcp  run the traffic of a scenario, beside the simulator
  mrc testbed shell h0                 open a shell in host h0
  mrc testbed rsh h0 'uname -n'        as ssh: by a shell, with the name of the host
  mrc testbed exec t1:2.0 -- ip -6 route    in a switch, by the name that faults use
  mrc testbed capture link:h0.2 a.pcap capture packets, until ^C
  mrc testbed capture h0 - | tshark -r -
  mrc testbed status --watch           refresh rates and queues once a second
  mrc testbed view                     watch it in a browser, and break it by clicks
  mrc testbed plan clos --svg clos.svg show a topology without building it
  mrc testbed export clos --netns-script clos.sh    also --containerlab, --switches
  mrc testbed import topology-map.yaml --output ocdai.toml    of OCP's Open Cluster Designs
  mrc testbed up clos --rate 100mbit   a built-in topology, with a lower rate
  mrc testbed up --hosts 4 --pods 2 --t2 2    three tiers: two pods, joined by two T2s
  mrc testbed up my.toml               a topology from a file
  mrc testbed up --fabric emulated     switches that queue, mark and trim
  mrc testbed up --uplink eth0         hosts reach the world: mrc testbed exec h0 -- ping 1.1.1.1
  mrc testbed up --planes 2 --real-host h1=tap1,tap2    h1 is a machine at the other end of these
  mrc testbed join h1                  a script for this machine
  mrc testbed up clos --on host-a,host-b --mtu 1450    over two machines, by ssh
  mrc testbed down                     remove the test bed
"""
_HERE = "mrc.testbed.cli.actions"
ACTIONS = {
    "plan": ("mrc.testbed.cli.plan", "show what up would build, without building it"),
    "export": ("mrc.lab.export", "write a topology for containerlab, or as a script of ip(8)"),
    "import": (
        "mrc.lab.ocdai",
        "make a topology file from a topology plan of OCP's Open Cluster Designs",
    ),
    "up": (_HERE, "build the test bed; a test bed that is up stays as it is"),
    "down": (_HERE, "remove the test bed, and end the programs of exec and shell in it"),
    "status": ("mrc.testbed.cli.status", "show the test bed, its faults and its traffic"),
    "view": (
        "mrc.view.cli",
        "show the test bed in a browser, where a click breaks and heals its parts",
    ),
    "join": (
        "mrc.lab.export",
        "print what a real machine has to configure to be a host of the test bed",
    ),
    "exec": (_HERE, "run a command in a host, with MRC_CONFIG set, or in a switch"),
    "shell": (_HERE, "open $SHELL in a host or a switch"),
    "rsh": (_HERE, "run a command in a host as ssh would, for mpirun and other launchers"),
    "capture": (_HERE, "write the packets of a host, a switch or a link to a pcap file"),
    "fail": (_HERE, "inject a fault into a plane, a switch or a link"),
    "drain": (_HERE, "move the hosts' traffic off a plane, a switch or a link without loss"),
    "undrain": (_HERE, "let traffic return to what was drained"),
    "run": (
        "mrc.sim.action",
        "run the traffic and the faults of a scenario, or the faults that a file schedules",
    ),
    "heal": (_HERE, "end the fault of a target, or all faults"),
    "part": (
        "mrc.lab.remote",
        "serve this machine's part of a test bed over several: up --on starts it",
    ),
}
"""The module of each action, and its text in the help, in which they have this order. An action
whose module is not in this tree is left out.
"""
_NAME = "name of the test bed; several can be up at the same time [lab]"


class _Parsers(dict[str, argparse.ArgumentParser]):
    """The parser of each action, which gets its arguments when somebody asks for it: the modules of
    other actions are not imported.
    """

    def __getitem__(self, word: str) -> argparse.ArgumentParser:
        parser = super().__getitem__(word)
        if parser.get_default("act") is None:
            _complete(parser, word)
        return parser

    def values(self) -> ValuesView[argparse.ArgumentParser]:  # type: ignore[override]
        return {word: self[word] for word in self}.values()

    def items(self) -> ItemsView[str, argparse.ArgumentParser]:  # type: ignore[override]
        return {word: self[word] for word in self}.items()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default=DEFAULT_NAME, metavar="NAME", help=_NAME)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    actions.choices = actions._name_parser_map = _Parsers()
    for word, (module, text) in ACTIONS.items():
        if products.has(module):
            actions.add_parser(word, help=text, description=text)


def _complete(parser: argparse.ArgumentParser, word: str) -> None:
    action: Action = import_module(ACTIONS[word][0]).ACTIONS[word]
    # --name may come before or after the action; the last one counts.
    parser.add_argument("--name", default=argparse.SUPPRESS, metavar="NAME", help=_NAME)
    parser.set_defaults(act=action)
    if action.add_arguments is not None:
        action.add_arguments(parser)
    if action.prints:
        Output.add_options(parser)


def run(args: argparse.Namespace) -> int:
    action: Action = args.act
    try:
        with nullcontext() if action.prepared is None else action.prepared(args):
            if action.needs == "nothing":
                with interruptible():
                    return action.run(args)
            from mrc.testbed import rootless, state  # slow imports

            try:
                with interruptible():
                    enter_namespaces(args)
                    return action.run(args)
            finally:
                with undisturbed():  # cut off in the middle, it would leave the keeper
                    rootless.leave(state.names)
    except ArgumentError as exc:
        raise UsageError(args.prog, str(exc)) from exc


def enter_namespaces(args: argparse.Namespace) -> None:
    """Makes an ordinary user root of the user namespace that holds the user's test beds."""
    from mrc.testbed import rootless  # slow imports
    from mrc.testbed import state as stored

    needs = args.act.needs
    if rootless.enter(create=needs == "new") or needs != "up":
        return
    if stored.load(args.name) is not None:
        raise StateError(f"test bed {args.name} belongs to root: run this command as root")
    raise StateError(f"test bed {args.name} is not up: mrc testbed up --name {args.name}")
