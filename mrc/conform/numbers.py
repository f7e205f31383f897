# SPDX-License-Identifier: Apache-2.0
"""The numbers of cases: sums with names, ranges, and PSNs counted from a first one. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

PSNS = 1 << 24
_TERM = re.compile(r"([+-]?)(\w+)(?:([*/])(\w+))?")


def value(text: str, names: Mapping[str, int]) -> int:
    """A sum such as mpr-1, 4*1024 or -8388608. Raises ValueError."""
    if not re.fullmatch(r"[+-]?\w+([*/]\w+)?([+-]\w+([*/]\w+)?)*", text):
        raise ValueError(f"{text!r} is no number")
    total = 0
    for sign, word, operation, factor in _TERM.findall(text):
        term = _number(word, names)
        if operation:
            other = _number(factor, names)
            term = term * other if operation == "*" else term // max(1, other)
        total += -term if sign == "-" else term
    return total


def _number(word: str, names: Mapping[str, int]) -> int:
    if word in names:
        return names[word]
    try:
        return int(word, 0)
    except ValueError:
        known = ", ".join(sorted(names))
        raise ValueError(f"{word!r} is neither a number nor one of {known}") from None


def span(text: str, names: Mapping[str, int]) -> range:
    """3..7 is the numbers from 3 to 7; 3 is only itself. Raises ValueError."""
    first, dots, last = text.partition("..")
    start = value(first, names)
    return range(start, (value(last, names) if dots else start) + 1)


def members(text: str, names: Mapping[str, int]) -> Iterator[int]:
    """1,3..5 is 1, 3, 4 and 5. Raises ValueError."""
    for part in text.split(","):
        yield from span(part, names)


def after(psn: int, first: int) -> int:
    """How many PSNs `psn` is after `first`; negative: before."""
    return (psn - first + PSNS // 2) % PSNS - PSNS // 2


def psn_at(distance: int, first: int) -> int:
    """The PSN that many after `first`."""
    return (first + distance) % PSNS
