# SPDX-License-Identifier: Apache-2.0
"""Whether values have their declared types: those of a program, which makes configurations and
calls functions; and for values of a file, which msgspec has refused, the words. Pure.

A message is one line that begins with the place of the value, such as
`interfaces[1]: must be a string, not 5`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from enum import Enum, Flag
from functools import cache
from types import UnionType
from typing import Any, get_args, get_type_hints

from msgspec import Struct, inspect, structs

from mrc.errors import WrongValueError
from mrc.typed import learn

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_IN_TABLE = re.compile(r"\[\.\.\.\]|`key`")  # msgspec gives no place inside a table with free keys
_IN_PLACE = re.compile(r"[\w.\[\]]+: ")
_OF_MSGSPEC = ("Expected", "Invalid enum value", "Number out of range")
_UNFIT = object()
_Number = inspect.IntType | inspect.FloatType
_Array = inspect.VarTupleType | inspect.TupleType


# ---- Values of a program -------------------------------------------------------------------------


def check_fields(made: Any) -> None:
    """As `mrc.typed.Checked` does."""
    for name, default, kind, is_secret in _fields_of(made.__class__):
        value = getattr(made, name)
        if value is not default and (fit := _fitting(name, value, kind, is_secret)) is not value:
            change = structs.force_setattr if isinstance(made, Struct) else object.__setattr__
            change(made, name, fit)


def checked(name: str, value: object, declared: Any) -> Any:
    """The argument called `name`, by its declared type; a sequence as a tuple, and what counts as a
    whole number as an int. Raises WrongValueError.
    """
    return _fitting(name, value, _kind_of(declared))


def _fitting(name: str, value: object, kind: inspect.Type, is_secret: bool = False) -> Any:
    """As `checked`. The error does not show a secret."""
    for each in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
        if (fit := _fit(name, value, each)) is not _UNFIT:
            return fit
    is_scalar = value is None or isinstance(value, str | int | float)
    if isinstance(value, Enum):
        given = f"{type(value).__name__}.{value.name}"
    else:
        given = shown(value) if is_scalar and not is_secret else _a(type(value))
    raise WrongValueError(f"{name}: must be {_wanted(kind)}, not {given}")


@cache
def _fields_of(made: Any) -> list[tuple[str, object, inspect.Type, bool]]:
    """Name, default and type of each field, and whether it is secret."""
    hints = get_type_hints(made, include_extras=True)
    has: Sequence[Any] = structs.fields(made) if issubclass(made, Struct) else fields(made)
    return [
        (each.name, each.default, _kind_of(hints[each.name]), not getattr(each, "repr", True))
        for each in has
    ]


@cache
def _kind_of(declared: Any) -> inspect.Type:
    if isinstance(declared, UnionType):  # msgspec has no bytes | Secret
        return inspect.UnionType(tuple(map(_kind_of, get_args(declared))))
    if isinstance(declared, type) and (issubclass(declared, Struct) or is_dataclass(declared)):
        return inspect.CustomType(declared)  # has checked its own fields
    learn(declared)
    return inspect.type_info(declared)


def _fit(name: str, value: Any, kind: inspect.Type) -> Any:
    """The value; _UNFIT if its type is another one."""
    match kind:
        case inspect.NoneType():
            fits = value is None
        case inspect.BoolType():
            fits = isinstance(value, bool)
        case inspect.IntType():
            if not isinstance(value, int | Enum) and hasattr(value, "__index__"):  # as NumPy's
                value = operator.index(value)
            fits = type(value) is int and _is_within(value, kind)
        case inspect.FloatType():
            fits = isinstance(value, int | float) and not isinstance(value, bool | Enum)
            fits = fits and -math.inf < value < math.inf and _is_within(value, kind)
        case inspect.StrType(pattern=None):
            fits = isinstance(value, str) and _is_long(value, kind)
        case inspect.BytesType():
            fits = isinstance(value, bytes)
        case inspect.LiteralType(values=choices):
            fits = isinstance(value, str) and value in choices
        case inspect.VarTupleType(item_type=item):
            fits = _is_sequence(value) and _is_long(value, kind)
            if fits:
                return tuple(_fitting(f"{name}[{i}]", each, item) for i, each in enumerate(value))
        case inspect.TupleType(item_types=items):
            fits = _is_sequence(value) and len(value) == len(items)
            if fits:
                return tuple(_fitting(name, *each) for each in zip(value, items, strict=True))
        case inspect.DictType(key_type=key, value_type=inner):
            fits = isinstance(value, dict)
            if fits:
                return {
                    _fitting(name, each, key): _fitting(
                        f"{name}.{repr(each)[1:-1]:.60}", value[each], inner
                    )
                    for each in value
                }
        case _:
            fits = isinstance(value, kind.cls)  # type: ignore[attr-defined]
    return value if fits else _UNFIT


def _is_within(value: float, kind: inspect.IntType | inspect.FloatType) -> bool:
    low, above, high = kind.ge, kind.gt, kind.le
    return (
        (low is None or value >= low)
        and (above is None or value > above)
        and (high is None or value <= high)
        and not (kind.multiple_of and value % kind.multiple_of)
    )


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _is_long(value: Sequence[Any], kind: inspect.StrType | inspect.VarTupleType) -> bool:
    most = math.inf if kind.max_length is None else kind.max_length
    return (kind.min_length or 0) <= len(value) <= most


# ---- Values of a file ----------------------------------------------------------------------------


def complaint(said: str, kind: Any, value: object, place: str) -> str:
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
        problem = f"must be {_wanted(wanted, in_file=True)}, not {shown(value)}"
    where = (place + path).removeprefix(".")
    if _IN_PLACE.match(problem):  # said by a __post_init__
        return f"{where}.{problem}" if where else problem
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


# ---- Words ---------------------------------------------------------------------------------------


def _wanted(kind: inspect.Type, *, in_file: bool = False) -> str:
    match kind:
        case inspect.UnionType(types=types):
            return " or ".join(_wanted(each, in_file=in_file) for each in types)
        case inspect.NoneType():
            return "nothing" if in_file else "None"
        case inspect.IntType() | inspect.FloatType():
            bounds = "" if kind.gt is None else f" above {kind.gt:.15g}"
            bounds += "" if kind.ge is None else f" from {kind.ge:.15g}"
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
        case inspect.EnumType(cls=choices) if in_file:
            return " or ".join(f'"{choice.value}"' for choice in choices)
        case inspect.EnumType(cls=choices) if not issubclass(choices, Flag):
            return " or ".join(f"{choices.__name__}.{choice.name}" for choice in choices)
        case inspect.VarTupleType(item_type=item, min_length=least, max_length=most):
            bounds = "" if most is None else f" of {least or 0} to {most}"
            return f"an array{bounds}" if in_file else f"a sequence{bounds}, each {_wanted(item)}"
        case inspect.TupleType(item_types=items) if not in_file:
            return " with ".join(_wanted(each) for each in items)
        case inspect.BoolType():
            return "true or false"
        case inspect.BytesType() | inspect.DictType() if not in_file:
            return "bytes" if isinstance(kind, inspect.BytesType) else "a dict"
    return "a table" if in_file else _a(kind.cls)  # type: ignore[attr-defined]


def _a(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOaeio' else 'a'} {kind.__name__}"


def shown(value: object) -> str:
    if isinstance(value, (list, tuple, dict)):
        return "a table" if isinstance(value, dict) else f"an array of {len(value)}"
    if isinstance(value, int) and abs(value) >> 64:
        return "a number of more than 64 bits"
    return "nothing" if value is None else f"{value!r:.60}"
