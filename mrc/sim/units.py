# SPDX-License-Identifier: Apache-2.0
"""Numbers with their units as people write them, such as "100 Gbit/s". Pure."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z/%]*)")

_TIMES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_RATES = {"bit/s": 1, "kbit/s": 10**3, "Mbit/s": 10**6, "Gbit/s": 10**9, "Tbit/s": 10**12}
_SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_SHARES = {"%": 10**4, "ppm": 1}


def _parse(text: str, units: dict[str, int], what: str) -> int:
    found = _NUMBER.fullmatch(text.strip())
    if found is None or found[2] not in units:
        raise ValueError(f"{text!r} is no {what}; units are {', '.join(units)}")
    return round(float(found[1]) * units[found[2]])


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
    """Parts per million, at most all."""
    share = _parse(text, _SHARES, "share")
    if share > 10**6:
        raise ValueError(f"{text!r} is more than all")
    return share
