# SPDX-License-Identifier: Apache-2.0
"""Results as objects, from the JSON that commands print: every type of `mrc.products.RESULTS`."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

import mrc
from mrc import enums, products
from mrc.cli.schema import _result
from mrc.errors import ArgumentError
from mrc.results import Failure, Plain, load

PLACES = sorted(
    {place for each in products.RESULTS.values() for place in each} | {"results.Failure"}
)
KINDS = [_result(place) for place in PLACES if products.has(f"mrc.{place.rpartition('.')[0]}")]
FAILURE = {"result": "Failure", "schema": 1, "error": "x", "exit_code": 2}
TEXTS = st.text(max_size=4)


def values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Values of a type, as msgspec describes it."""
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            members = {each.name: values(each.type) for each in fields}
            return st.deferred(lambda: st.builds(cls, **members))
        case inspect.UnionType(types=kinds):
            return st.one_of(*map(values, kinds))
        case inspect.VarTupleType(item_type=inner):
            return st.lists(values(inner), max_size=2).map(tuple)
        case inspect.TupleType(item_types=inner):
            return st.tuples(*map(values, inner))
        case inspect.DictType(key_type=key, value_type=inner):
            return st.dictionaries(values(key), values(inner), max_size=2)
        case inspect.IntType(ge=low, le=high):
            return st.integers(-(1 << 63) if low is None else low, high or (1 << 63) - 1)
        case inspect.FloatType(ge=low, le=high):
            return st.floats(low, high, allow_nan=False, allow_infinity=False)
        case inspect.StrType(min_length=least):
            return st.text(min_size=least or 0, max_size=4)
        case inspect.LiteralType(values=choices):
            return st.sampled_from(choices)
        case inspect.EnumType(cls=enum):
            return st.sampled_from(list(enum))
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.AnyType():
            return st.none() | st.booleans() | st.integers() | TEXTS
    raise AssertionError(f"no values of {kind}")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.__name__))
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_load__inverts_to_dict(kind: type[Plain], data: st.DataObject) -> None:
    result = data.draw(values(inspect.type_info(kind)))
    told = result.to_dict()
    assert told["result"] == kind.__name__
    for each in (told, json.dumps(told), json.dumps(told).encode()):
        assert load(each) == result
    assert pickle.loads(pickle.dumps(result)) == result


def test_results__have_names_of_their_own() -> None:
    assert len({place.rpartition(".")[2] for place in PLACES}) == len(PLACES)


def test_load__leaves_out_keys_of_a_later_version() -> None:
    assert load(FAILURE | {"later": 1}) == Failure(error="x", exit_code=2)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("", "text: is not JSON"),
        ("{", "text: is not JSON"),
        (b"\xff", "text: is not JSON"),
        ("[" * 100_000, "text: is not JSON"),
        ("[]", "result: None names no result"),
        ({}, "result: None names no result"),
        ({"result": "Perfect"}, "result: 'Perfect' names no result"),
        ({"result": ["x"] * 100}, "result: "),
        ({"result": ""}, "result: "),
        ({"result": "Failure"}, "error: is missing"),
        (FAILURE | {"exit_code": "2"}, "exit_code: must be a whole number, not '2'"),
        (FAILURE | {"schema": 2}, "schema: "),
    ],
)
def test_load__says_what_is_wrong(wrong: Any, why: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        load(wrong)
    assert str(refused.value).startswith(why) and len(str(refused.value)) < 200


def public_enums() -> Iterator[type[IntEnum]]:
    for kind in vars(enums).values():
        if isinstance(kind, type) and issubclass(kind, IntEnum) and hasattr(mrc, kind.__name__):
            yield kind


@pytest.mark.parametrize("kind", list(public_enums()))
def test_enums__their_text_is_their_name(kind: type[IntEnum]) -> None:
    for member in kind:
        assert f"{member}" == str(member) == member.name
        assert int(member) == member
