# SPDX-License-Identifier: Apache-2.0
"""Manual pages and shell completion of `mrc`, made from its parsers."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from pathlib import Path

import checkout

with checkout.set_up():
    from mrc.cli import completion
    from mrc.cli.arguments import Parser
    from mrc.cli.main import build_parser
    from mrc.cli.output import version_of

MAN, BASH, ZSH = (
    Path("share/man/man1"),
    Path("share/bash-completion/completions"),
    Path("share/zsh/site-functions"),
)


def write(folder: Path) -> None:
    """Writes all files into the folders of `folder` where `man` and shells search."""
    parser = build_parser()
    for name, page in pages(parser).items():
        _write(folder / MAN / f"{name}.1", page)
    _write(folder / BASH / "mrc", completion.script(parser, "bash"))
    _write(folder / ZSH / "_mrc", completion.script(parser, "zsh"))


def pages(parser: Parser) -> dict[str, str]:
    """Pages by name: one for `mrc` and one for each subcommand, with its actions."""
    os.environ |= {"COLUMNS": "80", "NO_COLOR": "1"}  # argparse breaks lines and colours by these
    subcommands = dict(_choices(parser))
    names = {name: f"mrc-{name}" for name in subcommands}
    see = [f"{_bold(name)}(1)" for name in names.values()]
    made = {"mrc": _page("mrc", parser, "move data over many paths and planes at once", see)}
    for name, (its, summary) in subcommands.items():
        made[names[name]] = _page(names[name], its, summary, [f"{_bold('mrc')}(1)"])
    return made


def _page(name: str, parser: Parser, summary: str, see: list[str]) -> str:
    head = f'.TH {_text(name.upper())} 1 "" "mrc {version_of("mrc-transport")}" "User Commands"'
    lines = [head, ".SH NAME", rf"{_text(name)} \- {_text(summary)}"]
    lines += [".SH SYNOPSIS", *_usage(parser)]
    lines += [".SH DESCRIPTION", _text(parser.description or f"{_sentence(summary)}.")]
    lines += _options(parser, ".SH")
    below = dict(_choices(parser))
    if below:
        lines.append(".SH SUBCOMMANDS" if name == "mrc" else ".SH ACTIONS")
    for word, (its, told) in below.items():
        if name == "mrc":
            lines += [".TP", _bold(word), _text(told)]
        else:
            lines += [f".SS {_text(its.prog)}", f"{_text(_sentence(told))}.", ".PP", *_usage(its)]
            lines += _options(its, "")
    lines += [*_blocks(parser.examples), *_blocks(parser.epilog or "")]
    lines += [".SH SEE ALSO", ",\n".join(see)]
    return "\n".join(lines) + "\n"


def _options(parser: Parser, title: str) -> Iterator[str]:
    """The arguments of a parser, in the groups of its help, without its subcommands."""
    formatter = parser._get_formatter()
    for group in parser._action_groups:
        shown = [
            each for each in group._group_actions
            if each.help != argparse.SUPPRESS and not isinstance(each, argparse._SubParsersAction)
        ]  # fmt: skip
        if shown and title:
            yield f"{title} {_text((group.title or '').upper())}"
        for action in shown:
            yield from (".TP", _bold(formatter._format_action_invocation(action)))
            yield _text(formatter._expand_help(action) if action.help else "")


def _usage(parser: Parser) -> list[str]:
    first, *more = parser.format_usage().rstrip().splitlines()
    width = len("usage: ")
    return [".nf", _text("\n".join(line[width:] for line in (first, *more))), ".fi"]


def _blocks(text: str) -> Iterator[str]:
    """Text that is laid out already, in blocks with a title above: "examples:"."""
    for title, block in re.findall(r"^(\w.*):\n((?:(?: .*)?\n)+)", f"{text.rstrip()}\n", re.M):
        yield from (f".SH {_text(title.upper())}", ".nf", _text(block.rstrip()), ".fi")


def _choices(parser: Parser) -> Iterator[tuple[str, tuple[Parser, str]]]:
    """The subcommands or actions of a parser, with their parsers and summaries."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action._choices_actions:
                yield each.dest, (action.choices[each.dest], each.help or "")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _bold(text: str) -> str:
    return rf"\fB{_text(text)}\fP"


def _text(text: str) -> str:
    """Text for roff, in which a backslash, a hyphen and the first character of a line can act."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.M)


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
