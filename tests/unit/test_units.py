# SPDX-License-Identifier: Apache-2.0
"""Numbers with units, as scenarios write them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import walls

import mrc
from mrc.units import (
    counted,
    digits,
    parse_rate,
    parse_share,
    parse_short_rate,
    parse_short_size,
    parse_short_time,
    parse_size,
    parse_time,
)


@pytest.mark.parametrize(
    ("value", "significant", "text"),
    [
        (1500, 6, "1500"), (0.5, 6, "0.5"), (1e8, 6, "100000000"), (1234567.8, 6, "1234570"),
        (1e-5, 6, "0.00001"), (50000, 3, "50000"), (-2e9, 3, "-2000000000"), (0.0, 3, "0"),
    ],
)  # fmt: skip
def test_digits__never_an_exponent(value: float, significant: int, text: str) -> None:
    assert digits(value, significant) == text


def test_counted() -> None:
    assert [counted(n, "T1") for n in (0, 1, 2)] == ["0 T1s", "1 T1", "2 T1s"]


@pytest.mark.parametrize(
    ("text", "ns"),
    [("0ns", 0), ("250 ns", 250), ("1.5us", 1500), ("2ms", 2_000_000), ("1s + 1us", 1_000_001_000)],
)
def test_parse_time__units_and_sums(text: str, ns: int) -> None:
    assert parse_time(text) == ns


def test_parse_time__round_trips_where_they_are_known() -> None:
    assert parse_time("200us + 10rtt", rtt_ns=7000) == 270_000
    with pytest.raises(ValueError, match="'10rtt' is not a time; units are ns, us, ms, s"):
        parse_time("10rtt")


@pytest.mark.parametrize("text", ["", "5", "-5us", "5 kg", "us", "1us +", "1e3us"])
def test_parse_time__refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        parse_time(text)


def test_parse_rate_and_size__units() -> None:
    assert parse_rate("100Gbit/s") == 100 * 10**9
    assert parse_size("16MiB") == 16 << 20
    assert parse_size("1.5 kB") == 1500


def test_parse_share__at_most_all() -> None:
    assert parse_share("0.1%") == 1000
    assert parse_share("100%") == 10**6
    with pytest.raises(ValueError, match="is more than 100%"):
        parse_share("101%")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("65536", 65536),
        ("512b", 512),
        ("64K", 64 << 10),
        ("64k", 64 << 10),
        ("64Ki", 64 << 10),
        ("1.5MiB", 3 << 19),
        ("64kB", 64_000),
        ("2 GB", 2_000_000_000),
        ("1t", 1 << 40),
    ],
)
def test_parse_short_size__units(text: str, size: int) -> None:
    assert parse_short_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("10", 10), ("0.5", 0.5), ("500ms", 0.5), ("2 s", 2), ("250us", 0.00025)]
)
def test_parse_short_time__seconds(text: str, seconds: float) -> None:
    assert parse_short_time(text) == seconds


@pytest.mark.parametrize("parse", [parse_short_size, parse_short_time, parse_short_rate])
@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "1e3", "K", "1 2", "5 minutes", "٣"])
def test_parse_short__refuses(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse(text)


_NO_ADJECTIVE = "(?!(?:carries|has|lacks|needs|names|of|and|in|for) )"


def _formatted(tree: ast.AST) -> Iterator[tuple[ast.FormattedValue, str]]:
    """Plain values of formatted strings, and the text behind each."""
    for string in ast.walk(tree):
        if isinstance(string, ast.JoinedStr):
            for value, text in pairwise(string.values):
                if (
                    isinstance(value, ast.FormattedValue)
                    and value.format_spec is None
                    and (not isinstance(value.value, ast.Call) or _name(value.value) == "len")
                    and isinstance(text, ast.Constant)
                ):
                    yield value, str(text.value)


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _counted_nouns(tree: ast.AST) -> set[str]:
    return {
        str(call.args[1].value).split()[-1]
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and _name(call) == "counted"
        and isinstance(call.args[1], ast.Constant)
    }


@walls.needs("beds", "programs", "judge", "lab")
def test_counted__is_what_writes_numbers_of_things() -> None:
    """What is counted at one place, such as planes, is so at each: no command prints "1 planes".
    Limits, which are constants, columns and values with a format are not looked at.
    """
    trees = {path: ast.parse(path.read_text()) for path in Path(mrc.__path__[0]).rglob("*.py")}
    nouns = {noun for tree in trees.values() for noun in _counted_nouns(tree)}
    assert {"plane", "path", "T1"} <= nouns
    plural = re.compile(rf" {_NO_ADJECTIVE}(?:[\w-]+ )?(?:{'|'.join(nouns)})s\b(?! and folders)")
    wrong = [
        f"{path}:{value.lineno}: {ast.unparse(value.value)}{text:.30}"
        for path, tree in trees.items()
        for value, text in _formatted(tree)
        if plural.match(text) and not ast.unparse(value.value).rpartition(".")[2].isupper()
    ]
    assert wrong == []
