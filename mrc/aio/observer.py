# SPDX-License-Identifier: Apache-2.0
"""What a Context tells whoever looks into it, and the default, which nobody looks through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mrc.aio.qp import QP
from mrc.events import QpInfo
from mrc.exchange.oob import Channel


class Viewers(Protocol):
    """Those that come to one listener to look."""

    async def admit(self, channel: Channel) -> None:
        """Takes over a connection whose first message is of type TOP."""

    async def close(self) -> None:
        """Ends every visit."""


class Observer(Protocol):
    """Is opened and closed with its Context."""

    async def open(self) -> None:
        """The Context is open; what this raises ends it."""

    async def close(self) -> None:
        """The Context is about to end; safe to call twice."""

    def forget(self) -> None:
        """The event loop has ended before the Context."""

    def adopt(self, qp: QP) -> Callable[[QpInfo | None], None] | None:
        """A QP was connected. Returns a function that gets its state when it is about to end."""

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
        await channel.refuse("this endpoint cannot be looked into")
