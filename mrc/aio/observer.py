# SPDX-License-Identifier: Apache-2.0
"""Interface through which `mrc top` and metrics observe a Context; the default shows nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mrc.aio.qp import QP
from mrc.events import QpInfo
from mrc.exchange.oob import Channel


class Viewers(Protocol):
    """The viewers that connect to one listener."""

    async def admit(self, channel: Channel) -> None:
        """Takes over a connection whose first message is of type TOP."""

    async def close(self) -> None:
        """Disconnects every viewer."""


class Observer(Protocol):
    """Opens and closes together with its Context."""

    async def open(self) -> None:
        """Called when the Context is open. An exception closes the Context again."""

    async def close(self) -> None:
        """Called before the Context ends; safe to call twice."""

    def forget(self) -> None:
        """Called when the event loop has ended before the Context."""

    def adopt(self, qp: QP) -> Callable[[QpInfo | None], None] | None:
        """Called for each connected QP. Returns a function to call with the QP's last state."""

    def viewers(self) -> Viewers:
        """The viewers of a new listener."""


class Unobserved:
    """The observer, and the viewers, of a Context that shows nothing."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    def forget(self) -> None: ...
    def adopt(self, qp: QP) -> Callable[[QpInfo | None], None] | None: ...

    def viewers(self) -> Viewers:
        return self

    async def admit(self, channel: Channel) -> None:
        await channel.refuse("this endpoint does not support viewing")
