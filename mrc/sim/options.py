# SPDX-License-Identifier: Apache-2.0
"""Options of commands that run scenarios: seeds and settings. Loads nothing of the simulator."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from mrc.cli.arguments import add
from mrc.cli.output import UsageError
from mrc.errors import ConfigError

T = TypeVar("T")

SEEDS = """
--seed N   seed of the random numbers in the first run [%(default)s]
--seeds N  number of runs, each with the next seed; checks use the median, and the table shows the
           quartiles [%(default)s]
"""
SETTINGS = """
--set KEY=VALUE...  replace a value of the scenario, such as traffic.0.writes=2; repeatable
"""


def add_seeds(parser: Any, n: int) -> None:
    add(parser, SEEDS, seed={"type": _seed, "default": 1}, seeds={"type": 10000, "default": n})


def add_settings(parser: Any) -> None:
    add(parser, SETTINGS, set={"dest": "settings"})


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 64:
        raise ValueError(f"{text!r} is not a number from 0 to {(1 << 64) - 1}")
    return int(text)


def loaded(args: argparse.Namespace, load: Callable[[dict[str, Any]], T]) -> T:
    """What `load` makes of the settings. Wrong values and scenarios are wrong usage."""
    from mrc.sim.sweep import parse_setting

    with usage_errors(args):
        return load(dict(parse_setting(text) for text in args.settings))


@contextmanager
def usage_errors(args: argparse.Namespace) -> Iterator[None]:
    """Wrong values and scenarios are wrong usage."""
    try:
        yield
    except (ValueError, ConfigError) as error:
        raise UsageError(args.prog, str(error)) from error


def seeds_of(args: argparse.Namespace) -> Sequence[int]:
    return range(args.seed, args.seed + args.seeds)
