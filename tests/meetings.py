# SPDX-License-Identifier: Apache-2.0
"""Two Contexts that have to prove themselves to each other, over loopback."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from slowness import PATIENCE

import mrc
from mrc.enums import Seal
from mrc.errors import ConnectError
from mrc.trust.security import Security


async def meet(
    connecting: Security | None,
    listening: Security | None,
    *,
    times: int = 1,
    seal: Seal | None = None,
) -> list[tuple[mrc.QP, mrc.QP]]:
    """Connects, sends a few bytes each way, and returns the two ends, closed."""
    config = mrc.ContextConfig(interfaces=("lo",), security=connecting, seal=seal)
    async with (
        mrc.Context(config) as one,
        mrc.Context(dataclasses.replace(config, security=listening)) as other,
        await other.listen("127.0.0.1", 0) as listener,
    ):
        return [await exchange(one, listener) for _ in range(times)]


async def exchange(one: mrc.Context, listener: mrc.Listener) -> tuple[mrc.QP, mrc.QP]:
    """Connects one QP and sends immediates over it."""
    out, back = await asyncio.gather(
        one.connect("127.0.0.1", listener.port, timeout=PATIENCE),
        listener.accept(timeout=PATIENCE),
    )
    async with out, back:
        await out.write_imm(imm=7)
        await back.write_imm(imm=8)
        assert (await anext(aiter(back.immediates()))).imm == 7
        assert (await anext(aiter(out.immediates()))).imm == 8
    return out, back


async def refused(connecting: Security | None, listening: Security | None) -> str:
    """The error of the connecting side, one line."""
    with pytest.raises(ConnectError) as caught:
        await meet(connecting, listening)
    assert "\n" not in str(caught.value)
    return str(caught.value)
