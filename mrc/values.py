# SPDX-License-Identifier: Apache-2.0
"""Whether values have their declared types: those of a program, which makes configurations and
calls functions; and for values of a file, which msgspec has refused, the words. Pure.

A message is one line that begins with the place of the value, such as
`interfaces[1]: must be a string, not 5`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import fields
from enum import Enum, Flag
from functools import cache, reduce
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from msgspec import Struct, ValidationError, convert, inspect, structs

from mrc.errors import WrongValueError

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_IN_TABLE = re.compile(r"\[\.\.\.\]|`key`")  # msgspec gives no place inside a table with free keys
_IN_PLACE = re.compile(r"[\w.\[\]]+: ")
_OF_MSGSPEC = ("Expected", "Invalid enum value", "Number out of range")
_PLAIN = (int, float, bool, str, bytes)
Learn = Callable[[Any], None]


# ---- Values of a program -------------------------------------------------------------------------


def check_fields(made: Any, learn: Learn) -> None:
    """As `mrc.typed.Checked` does, which has `learn`."""
    for name, default, declared, is_secret in _fields_of(made.__class__):
        value = getattr(made, name)
        if value is default:
            continue
        if (fit := checked(name, value, declared, learn, is_secret)) is not value:
            change = structs.force_setattr if isinstance(made, Struct) else object.__setattr__
            change(made, name, fit)


def checked(name: str, value: Any, declared: Any, learn: Learn, is_secret: bool = False) -> Any:
    """As `mrc.typed.checked`. The error does not show a secret."""
    classes, plain = _parts_of(declared, learn)
    if isinstance(value, classes):
        return value
    given = value
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        value = tuple(value)
    elif not isinstance(value, int):
        with suppress(TypeError):
            value = operator.index(value)  # of a number of NumPy
    if plain is not None and not isinstance(value, Enum | Set):
        try:
            return convert(value, plain)
        except (ValidationError, UnicodeEncodeError) as error:  # the latter for lone surrogates
            if "`$" in str(error) and not is_secret:  # of a part
                raise WrongValueError(complaint(str(error), plain, value, name)) from None
    words = [] if plain is None else [_wanted(_type_of(plain)).replace("an array", "a sequence")]
    wanted = " or ".join([*words, *map(_a, classes)])
    is_shown = isinstance(given, str | int | float) and not is_secret
    what = _shown(given) if is_shown else _a(type(given))
    raise WrongValueError(f"{name}: must be {wanted}, not {what}")


@cache
def _fields_of(made: Any) -> list[tuple[str, object, Any, bool]]:
    """Name, default and declared type of each field, and whether it is secret."""
    hints = get_type_hints(made, include_extras=True)
    has: Sequence[Any] = structs.fields(made) if issubclass(made, Struct) else fields(made)
    return [(each.name, each.default, hints[each.name], not getattr(each, "repr", True))
            for each in has]  # fmt: skip


@cache
def _parts_of(declared: Any, learn: Learn) -> tuple[tuple[type, ...], Any]:
    """The classes among a union, and the type of all that msgspec checks; None: there is none."""
    parts = get_args(declared) if isinstance(declared, UnionType) else (declared,)
    is_plain = {part: part in _PLAIN or get_origin(part) not in (None, Callable) for part in parts}
    plain = [part for part in parts if is_plain[part]]
    classes = tuple(get_origin(part) or part for part in parts if not is_plain[part])
    if not plain:
        return classes, None
    learn(joined := reduce(operator.or_, plain))
    return classes, joined


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
            wanted = _member(wanted, name or index)
            value = value[name] if name else value[int(index)]  # type: ignore[index]
        problem = f"must be {_wanted(wanted)}, not {_shown(value)}"
    where = (place + path).removeprefix(".")
    between = "." if _IN_PLACE.match(problem) else ": "  # a __post_init__ names the field
    return where + between + problem if where else problem


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
        case inspect.TupleType(item_types=types):
            return types[int(name)]
    return inspect.AnyType()


# ---- Words ---------------------------------------------------------------------------------------


def _wanted(kind: inspect.Type) -> str:
    match kind:
        case inspect.UnionType(types=types):
            return " or ".join(map(_wanted, types))
        case inspect.NoneType():
            return "nothing"
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
        case inspect.EnumType(cls=choices):
            return " or ".join(f'"{choice.value}"' for choice in choices)
        case inspect.VarTupleType(max_length=int(most)):
            return f"an array of {kind.min_length or 0} to {most}"
        case inspect.TupleType(item_types=types):
            return f"an array of {len(types)}"
        case inspect.VarTupleType():
            return "an array"
        case inspect.BoolType():
            return "true or false"
        case inspect.BytesType():
            return "bytes"
    return "a table"


def _a(kind: type) -> str:
    """A class in an error: the members of an enum, a Queues."""
    if issubclass(kind, Enum) and not issubclass(kind, Flag):
        return " or ".join(f"{kind.__name__}.{member.name}" for member in kind)
    name = kind.__name__.removesuffix("Type")
    return name if kind is NoneType else f"{'an' if name[0] in 'AEIO' else 'a'} {name}"


def _shown(value: object) -> str:
    if isinstance(value, (list, tuple, dict)):
        return "a table" if isinstance(value, dict) else f"an array of {len(value)}"
    if isinstance(value, int) and abs(value) >> 64:
        return "a number of more than 64 bits"
    return "nothing" if value is None else f"{value!r:.60}"
