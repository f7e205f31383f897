# SPDX-License-Identifier: Apache-2.0
"""`mrc completion`: prints the script by which a shell completes the words of `mrc`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from mrc.cli.output import Exit

HELP = "print the completion script of a shell"
EXAMPLES = """\
examples:
  eval "$(mrc completion bash)"        complete in this shell; add the line to ~/.bashrc
  eval "$(mrc completion zsh)"         the same for ~/.zshrc, after compinit
  mrc completion bash > ~/.local/share/bash-completion/completions/mrc
"""
SHELLS = ("bash", "zsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash or zsh")


def run(args: argparse.Namespace) -> int:
    from mrc.cli.main import build_parser  # it imports every subcommand, also this one

    print(script(build_parser(), args.shell))
    return Exit.OK


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for a parser of `mrc`. Arguments named FILE and DIR complete paths."""
    import shtab  # only here: other commands start without it

    paths = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}
    for each in parsers(parser):
        for action in each._actions:
            if isinstance(action.metavar, str) and action.metavar in paths:
                action.complete = paths[action.metavar]  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and all parsers of its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)
