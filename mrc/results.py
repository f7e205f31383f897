# SPDX-License-Identifier: Apache-2.0
"""Results of commands as objects, and as the JSON that the commands print."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Literal, TypeVar

from msgspec import Struct, inspect

from mrc import products
from mrc.errors import ArgumentError
from mrc.typed import take

T = TypeVar("T", bound=Struct)
KEYS = {
    **{f"{of}rate_bps": f"{of}rate_bits_per_second" for of in ("", "host_", "fabric_", "core_")},
    **{
        each: f"{each}_packets"
        for each in (
            "corrupt", "dropped", "lost", "marked", "offloaded", "overloaded", "received",
            "refused", "sent", "trimmed", "unroutable",
        )
    },
    "mtu": "mtu_bytes",
    "path_mtu": "path_mtu_bytes",
}  # fmt: skip
"""Keys that say the unit, of fields whose names do not: for `rename`."""


class Plain(Struct, frozen=True):
    """Data that JSON can hold."""

    def to_dict(self) -> dict[str, Any]:
        """The keys and values of the JSON: strings, numbers, booleans, None, lists, dicts."""
        found: dict[str, Any] = plain(self)
        return found


class Result(Plain, frozen=True, kw_only=True, tag=True, tag_field="result"):
    """Every object that a command prints begins with this. `result` is the name of its class."""

    schema: Literal[1] = 1
    """The version of the format. Keys may be added; a change of meaning counts it up."""


class Failure(Result, frozen=True, kw_only=True):
    """Printed when a command fails."""

    error: str
    """The line that the command also prints on stderr."""
    exit_code: int
    """The exit code of the command, or for a server of the session that failed."""


def load(text: str | bytes | Mapping[str, Any]) -> Plain:
    """The object whose JSON a command printed, or whose `to_dict` this is: such as a `Perf`, or a
    `Failure`. Keys that this version does not know are left out.

    Raises ArgumentError with the place of a value that is missing or wrong, also for the result of
    a product that is not installed.
    """
    try:
        value = text if isinstance(text, Mapping) else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"text: is not JSON: {error}") from None
    name = value.get("result") if isinstance(value, Mapping) else None
    places = ("results.Failure", *(each for its in products.RESULTS.values() for each in its))
    place = next((each for each in places if each.rpartition(".")[2] == name), "")
    module = products.load(f"mrc.{place.rpartition('.')[0]}")
    if module is None:
        raise ArgumentError(f"result: {name!r:.60} names no result of this mrc")
    kind: type[Plain] = getattr(module, place.rpartition(".")[2])
    try:
        return take(_with_members(value, inspect.type_info(kind)), kind)
    except ValueError as error:
        raise ArgumentError(str(error)) from None


def _with_members(value: Any, kind: inspect.Type) -> Any:
    """The value with members of an IntEnum in place of their names: msgspec takes only these."""
    match kind, value:
        case inspect.EnumType(cls=enum), str() if issubclass(enum, IntEnum):
            return enum.__members__.get(value, value)
        case inspect.UnionType(types=kinds), _:
            for each in kinds:
                value = _with_members(value, each)
        case inspect.StructType(fields=fields), Mapping():
            known = {each.encode_name: each.type for each in fields}
            return {
                key: _with_members(each, known[key]) if key in known else each
                for key, each in value.items()
            }
        case inspect.DictType(value_type=inner), Mapping():
            return {key: _with_members(each, inner) for key, each in value.items()}
        case inspect.VarTupleType(item_type=inner), list():
            return [_with_members(each, inner) for each in value]
    return value


def plain(value: Any) -> Any:
    """Structs as objects, tuples as arrays, an IntEnum as its name."""
    if isinstance(value, Struct):
        kind = value.__struct_config__
        found = {} if kind.tag_field is None else {kind.tag_field: kind.tag}
        named = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return found | {key: plain(getattr(value, name)) for key, name in named}
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def like(kind: type[T], *sources: object, **others: Any) -> T:
    """A `kind` that takes `others` as given, and each other field from the sources that have it,
    objects or mappings; the last of them counts.
    """
    shared: dict[str, Any] = {}
    for source in sources:
        for name in kind.__struct_fields__:
            if isinstance(source, Mapping):
                if name in source:
                    shared[name] = source[name]
            elif hasattr(source, name):
                shared[name] = getattr(source, name)
    return kind(**shared | others)


def nonzero(values: Mapping[str, int]) -> dict[str, int]:
    """The counters that counted anything."""
    return {name: value for name, value in values.items() if value}
