# SPDX-License-Identifier: Apache-2.0
"""Converts values from JSON and TOML into declared types, with msgspec. Pure.

An error message is one line: the place, the expected value and the actual value, such as
`ports[2].mtu: must be a whole number from 576 to 65536, not 100`.
"""

from __future__ import annotations

import re
import threading
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, inspect

MAX_WHOLE = (1 << 63) - 1  # msgspec has no bounds beyond it
Whole = Annotated[int, Meta(ge=0, le=MAX_WHOLE)]
Positive = Annotated[int, Meta(ge=1, le=MAX_WHOLE)]
Text = Annotated[str, Meta(min_length=1)]
T = TypeVar("T")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_IN_TABLE = re.compile(r"\[\.\.\.\]|`key`")  # msgspec gives no place inside a table with free keys
_learned: set[Any] = set()
_learning = threading.Lock()
_OF_MSGSPEC = ("Expected", "Invalid enum value", "Number out of range")


def take(
    value: object,
    kind: type[T],
    *,
    place: str = "",
) -> T:
    """Returns `value` converted to `kind`. All members have the types and bounds declared there.

    A type that msgspec does not support converts by its static method `read`. Raises ValueError,
    whose message begins with `place`, the position of `value` in its document.
    """
    _learn(kind)
    try:
        return msgspec.convert(value, kind, dec_hook=_read, str_keys=True)
    except msgspec.ValidationError as error:
        raise ValueError(_complaint(str(error), kind, value, place)) from None
    except RecursionError:
        raise ValueError(f"{place or 'the value'}: is nested too deeply") from None


def _read(kind: Any, value: object) -> object:
    return kind.read(value)


def _learn(kind: Any) -> None:
    """Makes the decoder of the type, as msgspec does when it first needs one.

    Two threads that do so at once crash the process (msgspec 0.22).
    """
    if kind not in _learned:
        with _learning:
            msgspec.json.Decoder(kind)
            _learned.add(kind)


def _complaint(said: str, kind: Any, value: object, place: str) -> str:
    """Rewrites a message of msgspec, such as "Expected `int` >= 576 - at `$.ports[2].mtu`"."""
    problem, found, path = said.rpartition(" - at `$")
    problem, path = (problem, path.removesuffix("`")) if found else (said, "")
    if missing := _MISSING.fullmatch(problem):
        problem, path = "is missing", f"{path}.{missing[1]}"
    elif problem.startswith(_OF_MSGSPEC) and not _IN_TABLE.search(said):
        wanted = _type_of(kind)
        for name, index in _STEP.findall(path):
            wanted = _member(wanted, name)
            value = value[name] if name else value[int(index)]  # type: ignore[index]
        problem = f"must be {_wanted(wanted)}, not {_shown(value)}"
    where = (place + path).removeprefix(".")
    return f"{where}: {problem}" if where else problem


_type_of = cache(inspect.type_info)


def _member(kind: inspect.Type, name: str) -> inspect.Type:
    """The type of the member called `name`, or of an array's items."""
    match kind:
        case inspect.UnionType(types=types):  # with None
            return _member(types[0], name)
        case inspect.StructType(fields=fields) | inspect.DataclassType(fields=fields):
            return next(field.type for field in fields if field.encode_name == name)
        case inspect.VarTupleType(item_type=inner) | inspect.DictType(value_type=inner):
            return inner
    return inspect.AnyType()


def _wanted(kind: inspect.Type) -> str:
    match kind:
        case inspect.UnionType(types=types):
            return " or ".join(map(_wanted, types))
        case inspect.NoneType():
            return "nothing"
        case inspect.IntType() | inspect.FloatType():
            bounds = "" if kind.ge is None else f" from {kind.ge:.15g}"
            bounds += "" if kind.le is None else f" to {kind.le:.15g}"
            factor = f" and a multiple of {kind.multiple_of}" if kind.multiple_of else ""
            whole = "whole " if isinstance(kind, inspect.IntType) else ""
            return f"a {whole}number{bounds}{factor}"
        case inspect.StrType(max_length=int(most)):
            return f"a string of {kind.min_length or 0} to {most} characters"
        case inspect.StrType(min_length=least):
            return "a string that is not empty" if least else "a string"
        case inspect.LiteralType(values=choices):
            return " or ".join(f'"{choice}"' for choice in choices)
        case inspect.EnumType(cls=choices):
            return " or ".join(f'"{choice.value}"' for choice in choices)
        case inspect.VarTupleType(max_length=int(most)):
            return f"an array of {kind.min_length or 0} to {most}"
        case inspect.VarTupleType():
            return "an array"
        case inspect.BoolType():
            return "true or false"
    return "a table"


def _shown(value: object) -> str:
    if isinstance(value, (list, tuple, dict)):
        return "a table" if isinstance(value, dict) else f"an array of {len(value)}"
    if isinstance(value, int) and abs(value) >> 64:
        return "a number of more than 64 bits"
    return "nothing" if value is None else f"{value!r:.60}"
