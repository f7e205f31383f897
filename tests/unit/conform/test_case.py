# SPDX-License-Identifier: Apache-2.0
"""The form of cases."""

from __future__ import annotations

import pytest

from mrc.conform.case import (
    CaseError,
    Choice,
    Step,
    after,
    load_cases,
    members,
    parse,
    psn_at,
    selected,
    span,
    value,
)
from mrc.conform.readings import BY_ID

CASE = """\
# a comment
case one
    A device does this.
    why Because.
    section 7.5.2
    reading G13-A
    psn 0xfffffe
    > WRITE_ONLY psn=0 fill=0x61
    < SACK cum_psn=0 within=50ms
    ? C4-B < NACK reason=PSN_OOR_WINDOW
    ? C4-A ! NACK
    = immediates 1 2
    . write bytes=64
"""


def test_parse__all_parts() -> None:
    (case,) = parse(CASE, "topic")
    assert (case.name, case.topic, case.title) == ("one", "topic", "A device does this.")
    assert (case.why, case.section, case.readings) == ("Because.", "7.5.2", ("G13-A",))
    assert case.psn == "0xfffffe"
    send, expect, choice, check, ask = case.steps
    assert isinstance(send, Step) and (send.sign, send.what) == (">", "WRITE_ONLY")
    assert isinstance(expect, Step) and expect.fields == {"cum_psn": "0", "within": "50ms"}
    assert isinstance(choice, Choice) and choice.reading == "C4"
    assert [(letter, step.sign) for letter, step in choice.alternatives] == [("B", "<"), ("A", "!")]
    assert isinstance(check, Step) and check.words == ("1", "2")
    assert isinstance(ask, Step) and ask.fields == {"bytes": "64"}


def test_parse__each_makes_a_case_of_each_combination() -> None:
    text = CASE.replace("case one\n", "case one\n    each n: 1 2\n    each icrc: a b\n")
    text = text.replace("fill=0x61", "fill={n}")
    # The title follows the name, so `each` lines stand behind it.
    text = text.replace(
        "    each n: 1 2\n    each icrc: a b\n    A device does this.\n",
        "    A device does this.\n    each n: 1 2\n    each icrc: a b\n",
    )
    cases = parse(text, "topic")
    assert [case.name for case in cases] == ["one-1-a", "one-1-b", "one-2-a", "one-2-b"]
    first = cases[2].steps[0]
    assert isinstance(first, Step) and first.fields["fill"] == "2"


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("WRITE_ONLY", "WRITE_SOME", "WRITE_SOME"),
        ("fill=0x61", "cum_psn=3", "cum_psn"),
        ("G13-A", "G13-B", "G13-B is no reading"),
        ("? C4-A !", "? C4-A >", "an alternative expects or forbids"),
        ("= immediates 1 2", "= everything", "everything"),
        ("    why Because.\n", "", "needs a line 'why'"),
        ("case one", "case One", "no name of a case"),
        ("    . write bytes=64\n", "    write\n", "no step"),
        ("    . write bytes=64\n", "  . write\n", "four blanks"),
    ],
)  # fmt: skip
def test_parse__refused(old: str, new: str, part: str) -> None:
    assert CASE.count(old) == 1
    with pytest.raises(CaseError, match=part):
        parse(CASE.replace(old, new), "topic")


def test_library__every_case_is_complete() -> None:
    cases = load_cases()
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert case.title.endswith("."), case.name
        assert case.why.endswith("."), case.name
        letters = [step for step in case.steps if isinstance(step, Choice)]
        for choice in letters:
            assert len(choice.alternatives) > 1, case.name
            assert choice.reading in BY_ID


def test_selected__by_name_pattern_and_topic() -> None:
    cases = load_cases()
    assert [case.name for case in selected(cases, ["beyond-window"])] == ["beyond-window"]
    assert {case.topic for case in selected(cases, ["window"])} == {"window"}
    with pytest.raises(CaseError, match="no case matches 'nothing'"):
        selected(cases, ["nothing"])


# ---- Numbers -------------------------------------------------------------------------------------
#
# Numbers of cases, and PSNs counted from a first one.


NAMES = {"mpr": 1024, "half": 1 << 23}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("7", 7), ("-1", -1), ("0xff", 255), ("mpr-1", 1023), ("-half", -(1 << 23)),
     ("mpr+half+2", 1024 + (1 << 23) + 2), ("2*mpr-9/4", 2046)],
)  # fmt: skip
def test_value__sums(text: str, expected: int) -> None:
    assert value(text, NAMES) == expected


@pytest.mark.parametrize("text", ["", "mpr-", "wimm", "1 2", "3..4", "mpr*", "mpr*2*3"])
def test_value__refused(text: str) -> None:
    with pytest.raises(ValueError):
        value(text, NAMES)


def test_span__both_ends_included() -> None:
    assert list(span("3..5", NAMES)) == [3, 4, 5]
    assert list(span("mpr-1", NAMES)) == [1023]


def test_members__lists_and_spans() -> None:
    assert list(members("1,3..5,-1", NAMES)) == [1, 3, 4, 5, -1]


@pytest.mark.parametrize("first", [0, 1, 0x7FFFFF, 0xFFFFFE])
@pytest.mark.parametrize("distance", [-1, 0, 1, 2, 0x7FFFFF, -0x800000])
def test_after__inverts_psn_at(first: int, distance: int) -> None:
    assert after(psn_at(distance, first), first) == distance
