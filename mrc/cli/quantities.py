# SPDX-License-Identifier: Apache-2.0
"""Sizes, rates and times on a command line."""

from __future__ import annotations

import argparse
import re

_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)(?:i?b)?", re.IGNORECASE)
_BIT_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)(?:bit(?:/s)?)?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)")
_NS = {"us": 1e3, "ms": 1e6, "s": 1e9}
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def byte_count(text: str) -> int:
    """An argparse type: bytes, with K, M, G and T of 1024, as in iperf3."""
    match = _COUNT.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 65536, 64K or 1.5M")
    return int(float(match[1]) * 1024 ** _POWERS[match[2].lower()])


def bit_rate(text: str) -> float:
    """An argparse type: bit/s, with K, M, G and T of 1000, as in iperf3."""
    match = _BIT_RATE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate such as 500M or 2.5G")
    return float(match[1]) * 1000.0 ** _POWERS[match[2].lower()]


def positive_seconds(text: str) -> float:
    """An argparse type: a time above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time in seconds, at most a day")
    return seconds


def file_count(text: str) -> int:
    """An argparse type: a number of files."""
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) < 1 << 40):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of files such as 1000")
    return int(text)


def bin_width(text: str) -> int:
    """An argparse type: ns, from a time with its unit."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 1ms, 500us or 0.1s")
    return round(float(match[1]) * _NS[match[2]])
