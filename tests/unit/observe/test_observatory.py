# SPDX-License-Identifier: Apache-2.0
"""Reports of a Context to its observer; the observer is optional."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
from endpoints import BUDGET_SECONDS, LOOPBACK, loopback_config

from mrc.aio.context import Context
from mrc.connect.connect import dial
from mrc.errors import ConnectError, ProtocolError
from mrc.events import QpInfo
from mrc.observe import views
from mrc.observe.snapshot import ObservedContext, ObservedQp
from mrc.observe.views import MetricsServer, RemoteView


class Noted:
    """An observer that records the reports."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.metrics_port = 0

    async def open(self, ctx: ObservedContext) -> None:
        self.told.append(f"open of {ctx.name}")

    def adopt(self, qp: ObservedQp) -> Callable[[QpInfo | None], None]:
        self.told.append(f"adopt {qp.peer_name}")
        return self.retire

    def retire(self, info: QpInfo | None) -> None:
        assert info is not None and info.first_sent_bytes == 0
        self.told.append("retire")

    def viewers(self) -> RemoteView:
        return RemoteView(None)

    def forget(self) -> None:
        self.told.append("forget")

    async def close(self) -> None:
        self.told.append("close")


async def test_observatory__shows_nothing_unless_the_configuration_says_so() -> None:
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        Context(loopback_config()) as context,
        await context.listen(LOOPBACK[4], 0) as listener,
    ):
        assert context.metrics_port == 0
        channel = await dial(None, LOOPBACK[4], listener.port)
        with pytest.raises(ConnectError, match="remote viewing is off"):
            await views.look_at_peer(channel)
        await channel.close()


async def test_observer__a_given_one_is_told_of_everything_in_order() -> None:
    noted = Noted()
    near, far = Context(loopback_config(), observer=noted), Context(loopback_config())
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        near,
        far,
        await far.listen(LOOPBACK[4], 0) as listener,
        await near.connect(LOOPBACK[4], listener.port),
    ):
        begin = [f"open of {near.name}", f"adopt {far.name}"]
        assert noted.told == begin
    assert noted.told == [*begin, "retire", "close"]


async def test_observer__a_given_one_replaces_the_views_of_the_configuration() -> None:
    config = loopback_config(metrics=(LOOPBACK[4], 0), remote_view=True)
    async with (
        asyncio.timeout(BUDGET_SECONDS),
        Context(config, observer=Noted()) as context,
        await context.listen(LOOPBACK[4], 0) as listener,
    ):
        assert context.metrics_port == 0
        channel = await dial(None, LOOPBACK[4], listener.port)
        with pytest.raises(ConnectError, match="remote viewing is off"):
            await views.look_at_peer(channel)
        await channel.close()


# ---- Views whose program does not answer ------------------------------------------------------


@pytest.fixture
async def complaints() -> list[dict[str, Any]]:
    """What asyncio would print, with a traceback."""
    found: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    return found


class Stopped:
    """A program that has been asked and does not answer."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def show(self, *_: object) -> NoReturn:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


async def test_local_view__closes(
    complaints: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "_homes", lambda: iter([tmp_path / "endpoints"]))
    monkeypatch.setattr(views, "_folders", lambda all_users: iter([tmp_path / "endpoints"]))
    program = Stopped()
    view = views.LocalView(program.show)
    async with asyncio.timeout(BUDGET_SECONDS):
        await view.open()
        looking = asyncio.create_task(views.look(views.sockets()[0]))
        await program.asked.wait()
        await view.close()
        with pytest.raises((ProtocolError, OSError)):
            await looking
    assert complaints == []


async def test_metrics__close(complaints: list[dict[str, Any]]) -> None:
    program = Stopped()
    server = MetricsServer(program.show)
    async with asyncio.timeout(BUDGET_SECONDS):
        await server.open("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        await program.asked.wait()
        await server.close()
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
    assert complaints == []
