# SPDX-License-Identifier: Apache-2.0
"""QPNs of a host: 24 random bits, each given to one program. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from mrc.errors import ProtocolError, QueueFullError

Owner = TypeVar("Owner")
_MOST = 1 << 20  # on one host; then a sixteenth of all numbers is in use


class Numbers(Generic[Owner]):
    """Which program has which QPN."""

    def __init__(self, draw: Callable[[], int]) -> None:
        self._draw = draw
        self._owners: dict[int, Owner] = {}

    def grant(self, owner: Owner, count: int) -> list[int]:
        """New numbers for a program; raises QueueFullError when the host has too many QPs."""
        if len(self._owners) + count > _MOST:
            raise QueueFullError(f"this host has {_MOST} QPs, the most allowed")
        granted: list[int] = []
        while len(granted) < count:
            if (number := self._draw()) not in self._owners:
                self._owners[number] = owner
                granted.append(number)
        return granted

    def claim(self, owner: Owner, number: int) -> bool:
        """Gives a number to a program that had it under a former agent; False: it is taken."""
        if number not in self._owners and len(self._owners) >= _MOST:
            return False
        return self._owners.setdefault(number, owner) == owner

    def take(self, owner: Owner, *numbers: int) -> None:
        """The same for a frame that names them; raises ProtocolError."""
        for number in numbers:
            if not 3 <= number <= 0xFFFFFF:
                raise ProtocolError(f"{number:#x} is not a QPN")
            if not self.claim(owner, number):
                raise ProtocolError(f"QP {number:#x} is another program's")

    def owner(self, number: int) -> Owner | None:
        """The program that has a number."""
        return self._owners.get(number)

    def free(self, number: int) -> None:
        """The QP has ended."""
        self._owners.pop(number, None)

    def forget(self, owner: Owner) -> None:
        """The program has ended."""
        self._owners = {n: each for n, each in self._owners.items() if each != owner}
