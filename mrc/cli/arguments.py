# SPDX-License-Identifier: Apache-2.0
"""Types of arguments with units, for argparse."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from mrc.sim.units import parse_size, parse_time
from mrc.testbed import parse_loss
from mrc.testbed.shape import parse_rate


def _unit(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as exc:
            raise argparse.ArgumentTypeError(str(exc)) from exc

    return parsed


time_argument = _unit(parse_time)
size_argument = _unit(parse_size)
rate_argument = _unit(parse_rate)
share_argument = _unit(parse_loss)
