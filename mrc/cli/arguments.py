# SPDX-License-Identifier: Apache-2.0
"""Arguments of subcommands: their parsers, lines and types: numbers with units, counts,
times.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

from mrc import units
from mrc.cli.output import UsageError
from mrc.connect.parse import host_and_port, port_number


class Parser(argparse.ArgumentParser):
    """Prints an error as one line, and the examples above the options. Its default `usual` is the
    action that may be left out.
    """

    check: Callable[[Sequence[str]], None] | None = None
    """looks at the words before they are parsed; raises ValueError"""

    def __init__(self, *args: Any, examples: str = "", **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(*args, **options)
        self.examples = examples
        self.set_defaults(prog=self.prog)

    def error(self, message: str) -> NoReturn:
        raise UsageError(self.prog, f"{message}; see {self.prog} --help")

    def parse_known_args(  # type: ignore[override]  # every caller passes a list
        self, args: list[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As in argparse, but the (sub)command that parses an unknown option reports it."""
        words = list(sys.argv[1:] if args is None else args)
        usual = self.get_default("usual")
        if usual and words and words[0] not in {*self._words(), "-h", "--help"}:
            words = [usual, *words]
        if self.check is not None:
            try:
                self.check(words)
            except ValueError as error:
                self.error(str(error))
        found, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def _words(self) -> Iterator[str]:
        """The words of its actions."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                yield from action.choices

    def _print_message(self, message: str, file: Any = None) -> None:
        """As in argparse, but text that cannot be printed is an error."""
        print(message, end="", file=file, flush=True)

    def format_help(self) -> str:
        text = super().format_help()
        return f"{self.examples}\n{text}" if self.examples else text


# ---- HOST, HOST:PORT and [ADDRESS]:PORT ----------------------------------------------------------


def listening_address(text: str) -> tuple[str, int]:
    """ADDRESS:PORT, or PORT on 127.0.0.1."""
    address, colon, port = text.rpartition(":")
    if not colon:
        return "127.0.0.1", port_number(port)
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    elif not address or ":" in address:
        raise ValueError(f"{text!r} is not PORT, ADDRESS:PORT or [ADDRESS]:PORT")
    return address, port_number(port)


# ---- Types of arguments --------------------------------------------------------------------------


def add(parser: Any, lines: str, **more: dict[str, Any]) -> None:
    """Adds the arguments that these lines describe, as in a help:

    files FILE...      an argument, with its help behind two blanks; as many as there are
    --exclude GLOB...  an option that may be repeated
    --time SECONDS     an option; SECONDS implies its type
    -v, --verbose      a flag, for it has no metavar
                       a line that begins with blanks continues the help

    `more`: what else argparse has to know about an argument, by its name. A `type` may also be a
    name in `_KINDS`, the largest of the whole numbers from 1 on, with `what` such a number is, or a
    function that raises ValueError with what is wrong.
    """
    for line in re.sub(r"\n +", " ", lines.strip()).split("\n"):
        head, text = re.split(r"  +", line, maxsplit=1)
        words = head.replace(", ", " ").split()
        options = [word for word in words if word.startswith("-")]
        name = next((word[2:].replace("-", "_") for word in options if word[1] == "-"), words[0])
        metavar = words[-1].removesuffix("...") if len(words) > max(1, len(options)) else None
        found: dict[str, Any] = {"help": text}
        if metavar:
            found |= {"metavar": metavar, "type": metavar if metavar in _KINDS else None}
        if words[-1].endswith("..."):
            found |= {"action": "append", "default": []} if options else {"nargs": "+"}
        elif options and not metavar and name not in more:
            found["action"] = "store_true"
        found |= more.pop(name, {})
        if "choices" in found:
            found["choices"] = list(map(str, found["choices"]))  # an error would print an enum
        if "type" in found:
            found["type"] = _parser_of(found["type"], found.pop("what", "a number"))
        parser.add_argument(*(options or words[:1]), **found)
    assert not more, f"no lines of {', '.join(more)}"


def _parser_of(kind: Any, what: str) -> Callable[[str], Any] | None:
    """The type of an argument for argparse, which of a ValueError tells only that it came."""
    if isinstance(kind, int):
        kind = partial(_whole_number, kind, what)
    parse = _KINDS[kind] if isinstance(kind, str) else kind
    if parse is None or isinstance(parse, type):  # such as int
        return parse

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def _whole_number(most: int, what: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) <= most):
        raise ValueError(f"{text!r} is not {what} from 1 to {most}")
    return int(text)


_LEAST_LIMIT_BPS = 1000


def _limit(text: str) -> int:
    """A rate that limits; 0: no limit."""
    rate_bps = units.parse_short_rate(text)
    if rate_bps < _LEAST_LIMIT_BPS and text != "0":
        raise ValueError(
            f"rate {text!r} is below 1 kbit/s: give a unit, such as 500mbit, 10gbit or 2.5G"
        )
    return rate_bps


def _seconds(text: str) -> float:
    """A time above 0, in seconds or with a unit; at most a day."""
    found = units.parse_short_time(text)
    if not 0 < found <= 86400:
        raise ValueError(f"{text!r} is not a time above 0, at most a day")
    return found


def _bytes(text: str) -> int:
    count = units.parse_short_size(text)
    if count < 1:
        raise ValueError(f"{text!r} is not a number of bytes above 0")
    return count


_KINDS: dict[str, Callable[[str], Any]] = {
    "SECONDS": _seconds, "PAUSE": lambda text: 0.0 if text.strip() == "0" else _seconds(text),
    "TIME": units.parse_time, "SIZE": units.parse_short_size, "BYTES": _bytes,
    "HOST[:PORT]": host_and_port, "N": int, "PORT": port_number, "RATE": _limit, "BITRATE": _limit,
}  # fmt: skip
"""The types of arguments, by their metavars; those of TIME are in ns, and PAUSE may be 0."""
