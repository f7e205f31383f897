# SPDX-License-Identifier: Apache-2.0
"""Reports of a Context to its observer; the observer is optional."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from endpoints import BUDGET_SECONDS, LOOPBACK, loopback_config

from mrc.aio.context import Context
from mrc.aio.observer import Unobserved
from mrc.aio.qp import QP
from mrc.errors import ConnectError
from mrc.events import QpInfo
from mrc.exchange.dial import dial
from mrc.observe import remote


class Noted(Unobserved):
    """Records the reports."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def open(self) -> None:
        self.told.append("open")

    def adopt(self, qp: QP) -> Callable[[QpInfo | None], None]:
        self.told.append("adopt")
        return self.retire

    def retire(self, info: QpInfo | None) -> None:
        assert info is not None and info.first_sent_bytes == 0
        self.told.append("retire")

    async def close(self) -> None:
        self.told.append("close")


async def test_unobserved__shows_nothing() -> None:
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        Context(loopback_config(remote_view=True)) as context,
        await context.listen(LOOPBACK[4], 0) as listener,
    ):
        channel = await dial(None, LOOPBACK[4], listener.port)
        with pytest.raises(ConnectError, match="does not support viewing"):
            await remote.look(channel)
        await channel.close()


class Watched(Context):
    """A Context with a recording observer."""

    def _make_observer(self) -> Noted:
        self.noted = Noted()
        return self.noted


async def test_observer__is_told_of_everything_in_order() -> None:
    near, far = Watched(loopback_config()), Context(loopback_config())
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        near,
        far,
        await far.listen(LOOPBACK[4], 0) as listener,
        await near.connect(LOOPBACK[4], listener.port),
    ):
        assert near.noted.told == ["open", "adopt"]
    assert near.noted.told == ["open", "adopt", "retire", "close"]
