# SPDX-License-Identifier: Apache-2.0
"""The public names: what a caller gets or gives has one."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterator

import pytest
import walls

import mrc

CLASSES = [name for name in mrc.__all__ if isinstance(getattr(mrc, name), type)]


def signatures(cls: type) -> Iterator[object]:
    """The types in the signatures of a class: fields, properties, methods."""
    if dataclasses.is_dataclass(cls) or cls.__module__ == "mrc.events":
        for name, hint in typing.get_type_hints(cls).items():
            if not name.startswith("_"):
                yield hint
    for name, member in inspect.getmembers(cls):
        function = member.fget if isinstance(member, property) else member
        function = getattr(function, "__func__", function)
        ours = inspect.isfunction(function) and function.__module__.startswith("mrc.")
        if ours and not name.startswith("_"):
            yield from typing.get_type_hints(function).values()


def parts(hint: object) -> Iterator[type]:
    """The classes of mrc in a type, such as those in `tuple[QpInfo, ...] | None`."""
    if isinstance(hint, type) and hint.__module__.startswith("mrc"):
        yield hint
    for part in typing.get_args(hint):
        yield from parts(part)


@walls.needs("programs")
@pytest.mark.parametrize("name", CLASSES)
def test_classes__of_signatures_are_public(name: str) -> None:
    used = {part.__name__ for hint in signatures(getattr(mrc, name)) for part in parts(hint)}
    assert used <= set(mrc.__all__)


def test_events__are_equal_whenever_they_happened() -> None:
    one, other = (mrc.PlaneEvent(2, True, mrc.EventReason.PROBES, at_ns=at) for at in (1, 2))
    back = mrc.PlaneEvent(2, False, mrc.EventReason.PROBES, at_ns=1)
    port = mrc.PortEvent(2, True, mrc.EventReason.PROBES, at_ns=1)
    assert [one == each for each in (other, back, port)] == [True, False, False]
    assert [one != each for each in (other, back, port)] == [False, True, True]
    assert hash(one) == hash(other)
