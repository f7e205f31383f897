# SPDX-License-Identifier: Apache-2.0
"""Results as data that `json` can write. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Literal, TypeVar

from msgspec import Struct

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


class Result(Struct, frozen=True, kw_only=True):
    """Every object that a command prints begins with this."""

    schema: Literal[1] = 1
    """The version of the format. Keys may be added; a change of meaning counts it up."""


class Failure(Result, frozen=True, kw_only=True):
    """Printed when a command fails."""

    error: str
    """The line that the command also prints on stderr."""
    exit_code: int
    """The exit code of the command, or for a server of the session that failed."""


def plain(value: Any) -> Any:
    """Structs as objects, tuples as arrays, an IntEnum as its name."""
    if isinstance(value, Struct):
        named = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {key: plain(getattr(value, name)) for key, name in named}
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
