# SPDX-License-Identifier: Apache-2.0
"""Converts values from JSON and TOML into declared types, with msgspec. Pure.

An error message is one line: the place, the expected value and the actual value, such as
`ports[2].mtu: must be a whole number from 576 to 65536, not 100`.
"""

from __future__ import annotations

import threading
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

MAX_WHOLE = (1 << 63) - 1  # msgspec has no bounds beyond it
Whole = Annotated[int, Meta(ge=0, le=MAX_WHOLE)]
Positive = Annotated[int, Meta(ge=1, le=MAX_WHOLE)]
Text = Annotated[str, Meta(min_length=1)]
Name = Annotated[str, Meta(max_length=255)]
"""Of a host."""
T = TypeVar("T")
_learned: set[Any] = set()
_learning = threading.Lock()


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
    learn(kind)
    try:
        return msgspec.convert(value, kind, dec_hook=_read, str_keys=True)
    except msgspec.ValidationError as error:
        from mrc.values import complaint  # slow import

        raise ValueError(complaint(str(error), kind, value, place)) from None
    except RecursionError:
        raise ValueError(f"{place or 'the value'}: is nested too deeply") from None


def _read(kind: Any, value: object) -> object:
    return kind.read(value)


def learn(kind: Any) -> None:
    """Makes the decoder of the type, as msgspec does when it first needs one.

    Two threads that do so at once crash the process (msgspec 0.22).
    """
    if kind not in _learned:
        with _learning:
            msgspec.json.Decoder(kind)
            _learned.add(kind)


def checked(name: str, value: object, declared: Any) -> Any:
    """The argument called `name`, any sequence as a tuple. Raises WrongValueError."""
    from mrc import values  # slow import

    return values.checked(name, value, declared, learn)


class Checked:
    """A dataclass or Struct whose fields have the types and bounds declared there, however it is
    made. Any sequence becomes a tuple.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        """Raises WrongValueError; in a file, msgspec adds the place."""
        fields = getattr(self, "__dataclass_fields__", None)  # a Struct has none
        if fields is None or any(
            getattr(self, name) is not each.default for name, each in fields.items()
        ):
            from mrc.values import check_fields  # slow import

            check_fields(self, learn)
