# SPDX-License-Identifier: Apache-2.0
"""Viewers: a limited number at a time, for a limited time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mrc.messaging import session
from mrc.messaging.session import MAX_VISITS, let_look


class Visitor:
    """The parts of a QP that a visit uses."""

    def __init__(self, address: str = "10.0.0.1") -> None:
        self.peer_address = address
        self.gone = asyncio.Event()
        self.until_peer_gone = self.gone.wait
        self.closed = False

    async def __aenter__(self) -> Visitor:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.closed = True


async def test_let_look__until_the_peer_has_seen_enough() -> None:
    visitor: Any = Visitor()
    visit = asyncio.create_task(let_look(visitor))
    await asyncio.sleep(0)
    assert not visitor.closed
    visitor.gone.set()
    await visit
    assert visitor.closed


async def test_let_look__not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    assert session.VISIT_SECONDS == 10
    monkeypatch.setattr(session, "VISIT_SECONDS", 0.01)
    visitor: Any = Visitor()
    await let_look(visitor)
    assert visitor.closed


async def test_let_look__no_more_than_so_many() -> None:
    assert MAX_VISITS == 16
    visitors: list[Any] = [Visitor() for _ in range(MAX_VISITS)]
    visits = [asyncio.create_task(let_look(visitor)) for visitor in visitors]
    await asyncio.sleep(0)
    late: Any = Visitor()
    later: Any = Visitor()
    await let_look(late)
    assert late.closed and not any(visitor.closed for visitor in visitors)
    visitors[0].gone.set()
    await visits[0]
    another = asyncio.create_task(let_look(later))
    await asyncio.sleep(0)
    assert not later.closed
    for task in (another, *visits):
        task.cancel()
    await asyncio.gather(another, *visits, return_exceptions=True)


async def test_let_look__one_source_does_not_take_all_places() -> None:
    """A newcomer gets the place of a source that has more than its own share."""
    visitors: list[Any] = [Visitor() for _ in range(MAX_VISITS)]
    visits = [asyncio.create_task(let_look(visitor)) for visitor in visitors]
    await asyncio.sleep(0)
    other: Any = Visitor("10.0.0.2")
    visits.append(asyncio.create_task(let_look(other)))
    await asyncio.wait(visits, return_when=asyncio.FIRST_COMPLETED)
    assert not other.closed
    assert [visitor.closed for visitor in visitors].count(True) == 1
    for task in visits:
        task.cancel()
    await asyncio.gather(*visits, return_exceptions=True)
