# SPDX-License-Identifier: Apache-2.0
"""Parses numbers with units, such as "100 Gbit/s", and writes numbers. Pure.

Files use full unit names. Command lines also accept the short forms of tc(8) and iperf3, in upper
or lower case: 500mbit, 2.5G, 64K. Sizes: K, Ki and KiB are 1024 bytes, kB is 1000 bytes. Times: a
number without a unit is in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

MOST = 10**18
"""Of nanoseconds, bytes and bits a second: what 64 bits hold, with room for sums."""

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z/%]*)", re.ASCII)

_TIMES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_RATES = {"bit/s": 1, "kbit/s": 10**3, "Mbit/s": 10**6, "Gbit/s": 10**9, "Tbit/s": 10**12}
_SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_MULTIPLES = {  # from one to the next, those in the unit, and their names
    "B": (1024, 1, ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")),
    "bit/s": (1000, 1, tuple(_RATES)),
    "s": (1000, 10**6, ("us", "ms", "s")),
}
_SHARES = {"%": 10**4, "ppm": 1}
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SHORT_RATES = {
    f"{letter}{unit}": 1000**power
    for letter, power in _POWERS.items()
    for unit in ("", "bit", "bit/s")
}
_SHORT_SIZES = {"b": 1} | {
    f"{letter}{unit}": 1024**power for letter, power in _POWERS.items() for unit in ("", "i", "ib")
}
_SHORT_SIZES |= {f"{letter}b": 1000**power for letter, power in _POWERS.items() if letter}


def digits(value: float, significant: int = 6) -> str:
    """A number for people: at most so many significant digits, and never an exponent."""
    short = f"{value:.{significant}g}"
    return f"{Decimal(short):f}" if "e" in short else short


def counted(count: int, what: str) -> str:
    """ "1 file", "2 files"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def scaled(value: float, unit: str) -> str:
    """A number for people, in the multiple of B, bit/s or s that suits it: 1.5 KiB, 1.94 Gbit/s,
    1.6 ms.
    """
    step, first, names = _MULTIPLES[unit]
    if unit == "s" and not value:
        return "0 s"
    value, index = value * first, 0
    while value >= step and index < len(names) - 1:
        value /= step
        index += 1
    whole = index == 0 or (value >= 999.5 and unit != "s")  # not "1.02e+03 KiB"
    return f"{value:.0f} {names[index]}" if whole else f"{digits(value, 3)} {names[index]}"


def quantity(text: str, units: Mapping[str, int]) -> float | None:
    """The value of `text` in the unit of size 1; None when `text` is not a number with a unit."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None or found[2] not in units:
        return None
    return float(found[1]) * units[found[2]]


def _parse(text: str, units: Mapping[str, int], what: str) -> int:
    if (value := quantity(text, units)) is None:
        raise ValueError(f"{text!r} is not a {what}; units are {', '.join(units)}")
    if value > MOST:
        raise ValueError(f"{text!r} is too large")
    return round(value)


def parse_time(text: str, rtt_ns: int | None = None) -> int:
    """Nanoseconds. A sum is allowed; with `rtt_ns`, rtt is a unit: "200us + 10rtt"."""
    units = _TIMES if rtt_ns is None else _TIMES | {"rtt": rtt_ns}
    return sum(_parse(term, units, "time") for term in text.split("+"))


def parse_rate(text: str) -> int:
    """Bits a second."""
    return _parse(text, _RATES, "rate")


def parse_size(text: str) -> int:
    """Bytes."""
    return _parse(text, _SIZES, "size")


def parse_share(text: str) -> int:
    """Parts per million, at most 10**6."""
    share = _parse(text, _SHARES, "share")
    if share > 10**6:
        raise ValueError(f"{text!r} is more than 100%")
    return share


def parse_short_rate(text: str) -> int:
    """Bits a second, from 500mbit, 2.5G, 10 Gbit/s or plain bit/s."""
    if (rate := quantity(text.lower(), _SHORT_RATES)) is None:
        raise ValueError(f"rate {text!r} is not like 500mbit, 10gbit or 2.5G")
    return round(rate)


def parse_short_size(text: str) -> int:
    """Bytes, from 65536, 64K, 1.5MiB or 64kB."""
    if (size := quantity(text.lower(), _SHORT_SIZES)) is None:
        raise ValueError(f"{text!r} is not a size such as 65536, 64K or 1.5MiB")
    return round(size)


def parse_short_time(text: str) -> float:
    """Seconds, from 10, 0.5, 500ms or 2s."""
    if (ns := quantity(text, _TIMES | {"": _TIMES["s"]})) is None:
        raise ValueError(f"{text!r} is not a time such as 10, 0.5 or 500ms")
    return ns / _TIMES["s"]
