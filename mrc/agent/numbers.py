# SPDX-License-Identifier: Apache-2.0
"""QPNs of a host: 24 random bits, each given to one program. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from mrc.errors import ProtocolError, QueueFullError

Owner = TypeVar("Owner")
_MOST = 1 << 20  # on one host; then a sixteenth of all numbers is in use
_MOST_ENDED = 1 << 16  # of which the agent remembers that they have ended


class Numbers(Generic[Owner]):
    """Which program has which QPN."""

    def __init__(self, draw: Callable[[], int]) -> None:
        self._draw = draw
        self._owners: dict[int, Owner] = {}
        self._ended: dict[int, None] = {}  # the last ones, in order

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

    def has_ended(self, number: int) -> bool:
        """Whether a program had it, and that QP or program has ended."""
        return number in self._ended and number not in self._owners

    def free(self, number: int) -> None:
        """The QP has ended."""
        if self._owners.pop(number, None) is not None:
            self._end(number)

    def forget(self, owner: Owner) -> None:
        """The program has ended."""
        for number in [n for n, each in self._owners.items() if each == owner]:
            self.free(number)

    def _end(self, number: int) -> None:
        self._ended.pop(number, None)
        self._ended[number] = None
        if len(self._ended) > _MOST_ENDED:
            del self._ended[next(iter(self._ended))]
