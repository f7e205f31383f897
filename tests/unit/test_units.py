# SPDX-License-Identifier: Apache-2.0
"""Numbers with units, as scenarios write them; values of declared types."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import walls
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct, field

import mrc
from mrc.perf.results import Real
from mrc.typed import Text, Whole, take
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


# ---- Values of declared types, and the one-line message for other values -------------------------


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Point:
    x: Annotated[int, Meta(ge=2, le=8, multiple_of=2)]
    y: Annotated[float, Meta(ge=0.5, le=1e15)] = 1.0


class Shape(Struct, frozen=True):
    name: Text
    points: Annotated[tuple[Point, ...], Meta(min_length=1, max_length=3)]
    filled: bool = False
    short: Annotated[str, Meta(max_length=4)] = ""
    colour: Colour = Colour.RED
    kind: Literal["line", "area"] = "line"
    count: Whole = 0
    of: dict[str, int] = field(name="from", default_factory=dict)
    size: Point | None = None
    free: dict[str, Any] = field(default_factory=dict)


class Even:
    @staticmethod
    def read(value: Any) -> Even:
        if value % 2:
            raise ValueError(f"{value} is odd")
        return Even()


class Holder(Struct, frozen=True):
    even: tuple[Even, ...]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
GOOD: dict[str, Any] = {"name": "a", "points": [{"x": 4}]}


def test_take__unknown_keys_are_ignored() -> None:
    assert take(GOOD | {"other": 1}, Shape) == Shape("a", (Point(4),))


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("name", "", "name: must be a string that is not empty, not ''"),
        ("name", None, "name: must be a string that is not empty, not nothing"),
        ("name", "\x1b[2J", None),
        ("points", [], "points: must be an array of 1 to 3, not an array of 0"),
        ("points", [{"x": 2}] * 4, "points: must be an array of 1 to 3, not an array of 4"),
        ("points", [{"x": 4}, {}], r"points[1].x: is missing"),
        ("points", [{"x": 10}], "points[0].x: must be a whole number from 2 to 8"
         " and a multiple of 2, not 10"),
        ("points", [{"x": 3}], "points[0].x: must be a whole number from 2 to 8"
         " and a multiple of 2, not 3"),
        ("points", [{"x": True}], "points[0].x: must be a whole number from 2 to 8"
         " and a multiple of 2, not True"),
        ("points", [{"x": 2, "y": float("nan")}], "points[0].y: must be a number from 0.5 to"
         " 1e+15, not nan"),
        ("points", [{"x": 2, "y": 10**400}], "points[0].y: must be a number from 0.5 to"
         " 1e+15, not a number of more than 64 bits"),
        ("points", 7, "points: must be an array of 1 to 3, not 7"),
        ("points", [7], "points[0]: must be a table, not 7"),
        ("filled", 1, "filled: must be true or false, not 1"),
        ("short", "x\ny - at `$.name`", r"short: must be a string of 0 to 4 characters,"
         r" not 'x\ny - at `$.name`'"),
        ("short", "x" * 1000, f"short: must be a string of 0 to 4 characters, not '{'x' * 59}"),
        ("colour", "green", """colour: must be "red" or "blue", not 'green'"""),
        ("kind", "x - at `$.points[7]", """kind: must be "area" or "line", not"""
         """ 'x - at `$.points[7]'"""),
        ("count", 1 << 63, "count: must be a whole number from 0 to 9.22337203685478e+18, not"
         " 9223372036854775808"),
        ("count", -1, "count: must be a whole number from 0 to 9.22337203685478e+18, not -1"),
        ("from", {"a": "x"}, "from[...]: Expected `int`, got `str`"),
        ("size", 3, "size: must be a table or nothing, not 3"),
        ("size", {"x": 9}, "size.x: must be a whole number from 2 to 8 and a multiple of 2, not 9"),
        ("free", [], "free: must be a table, not an array of 0"),
    ],
)  # fmt: skip
def test_take__names_place_and_fault(key: str, value: object, complaint: str | None) -> None:
    if complaint is None:
        assert take(GOOD | {key: value}, Shape).name == value
        return
    with pytest.raises(ValueError, match=r"\w") as caught:
        take(GOOD | {key: value}, Shape)
    assert str(caught.value) == complaint
    with pytest.raises(ValueError, match=r"\w") as caught:
        take(GOOD | {key: value}, Shape, place="shapes[3]")
    assert str(caught.value) == f"shapes[3].{complaint}"


@given(st.sampled_from([*Shape.__struct_encode_fields__]), JSON)
def test_take__any_member_is_taken_or_refused(key: str, value: object) -> None:
    for told in (GOOD | {key: value}, GOOD | {"points": [{"x": 2, "y": value}]}):
        try:
            take(told, Shape)
        except ValueError as error:
            assert str(error).startswith((key, "points[0].y: must be"))


def test_take__the_value_itself_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"^must be a table, not nothing$"):
        take(None, Shape)
    with pytest.raises(ValueError, match=r"^peer: must be a table, not 'x'$"):
        take("x", Shape, place="peer")


def test_take__what_reads_a_type_says_what_is_wrong() -> None:
    assert len(take({"even": [2, 4]}, Holder).even) == 2
    with pytest.raises(ValueError, match=r"^even\[1\]: 3 is odd$"):
        take({"even": [2, 3]}, Holder)


def test_take__any_depth_is_taken_or_refused() -> None:
    nested: dict[str, Any] = {}
    for _ in range(2000):
        nested = {"a": nested}
        try:
            assert take(GOOD | {"free": nested}, Shape).name == "a"
        except ValueError as error:
            assert str(error) == "the value: is nested too deeply"
            break


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Whole, True), (Whole, 1.0), (Whole, "1"), (Whole, -1), (Whole, 1 << 63),
        (Real, False), (Real, "1"), (Real, -1e16), (Real, 1e16), (Real, float("nan")),
        (str, 1), (str, None), (bool, "yes"),
    ],
)  # fmt: skip
def test_take__values_of_the_wrong_kind(kind: Any, value: object) -> None:
    with pytest.raises(ValueError, match=r"^must be .*, not "):
        take(value, kind)


def test_take__values_of_the_right_kind() -> None:
    assert (take(0, Whole), take(-3.5, Real), take(3, Real)) == (0, -3.5, 3.0)


THREADS = """
import gc, sys, threading
from dataclasses import make_dataclass
from msgspec import defstruct
from mrc.typed import take

sys.setswitchinterval(1e-6)
gc.set_threshold(5)
for number in range(300):
    part = make_dataclass(f"Part{number}", [("x", int), ("y", tuple[str, ...])])
    whole = defstruct(f"Whole{number}", [("a", part), ("b", tuple[part, ...])])
    start = threading.Barrier(8)

    def work():
        start.wait()
        take({"a": {"x": 1, "y": ["k"]}, "b": [{"x": 1, "y": []}]}, whole)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.slow
def test_take__first_by_many_threads_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
