# SPDX-License-Identifier: Apache-2.0
"""The parser of `mrc` and of each subcommand."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from mrc.cli.exits import UsageError


class Parser(argparse.ArgumentParser):
    """Prints an error as one line, and the examples above the options."""

    actions: Sequence[str] = ()
    usual = ""
    """the default action"""
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
        if self.usual and words and words[0] not in {*self.actions, "-h", "--help"}:
            words = [self.usual, *words]
        if self.check is not None:
            try:
                self.check(words)
            except ValueError as error:
                self.error(str(error))
        found, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def _print_message(self, message: str, file: Any = None) -> None:
        """As in argparse, but text that cannot be printed is an error."""
        print(message, end="", file=file, flush=True)

    def format_help(self) -> str:
        text = super().format_help()
        return f"{self.examples}\n{text}" if self.examples else text
