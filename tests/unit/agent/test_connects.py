# SPDX-License-Identifier: Apache-2.0
"""What a program hears of an exchange that fails."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from slowness import PATIENCE

from mrc.agent import connects
from mrc.agent.connects import Connects
from mrc.agent.peers import QpGoneError
from mrc.connect.connect import Local, Terms
from mrc.connect.oob import Channel
from mrc.enums import AgentKind
from mrc.errors import ArgumentError, BusyError, ConnectError, ConnectRefusedError, Kind


@pytest.mark.parametrize("known", [True, False], ids=["the peer", "a stranger"])
@pytest.mark.parametrize("kind", [Kind.ENDED, Kind.OTHER])
async def test_accept__of_a_peer_whose_program_ends_meanwhile(
    monkeypatch: pytest.MonkeyPatch, known: bool, kind: Kind
) -> None:
    """The two engines may talk before the agents are through, so the program waits for it."""

    async def establish(local: Local, channel: Channel, terms: Terms, *, first: bool) -> None:
        if known:
            terms.check("h1", [], "h1")
        raise ConnectRefusedError("it refused", "it has ended", kind)

    monkeypatch.setattr(connects, "establish", establish)
    program = Mock()
    ours: Any = Connects(program, Mock(), Mock())
    ours._terms_of = lambda _: (Mock(), "h1", Terms({}, Mock(), Mock(), Mock()))
    with pytest.raises(ConnectRefusedError):
        await ours.accept(Mock(), Mock(qpn=7))
    told = [call.args for call in program.send.mock_calls]
    assert told == ([(AgentKind.GONE, 7)] if known and kind is Kind.ENDED else [])


def waiting(monkeypatch: pytest.MonkeyPatch, *answers: Exception | None) -> tuple[Any, Mock]:
    """A program whose QPs wait for a peer that dials, and whose agent answers so when asked."""
    monkeypatch.setattr(connects, "_ASK_SECONDS", 0.001)
    monkeypatch.setattr(connects, "ask", AsyncMock(side_effect=answers))
    program, host = Mock(), Mock()
    host.local.config.timeouts.exchange = PATIENCE
    program.address_of.return_value = (Mock(), "h1", 4791)
    return Connects(program, host, Mock()), program


async def test_expect__fails_as_soon_as_the_peer_says_that_its_qp_never_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = (None, BusyError("young"), TimeoutError(), QpGoneError("it has ended"))
    ours, program = waiting(monkeypatch, *answers)
    await ours._expect(Mock(qpn=7))
    program.fail.assert_called_once_with(7, "it has ended")
    assert ours.fate(7, {}) == "it has ended" and ours.fate(8, {}) == ""


async def test_fate__of_a_qp_that_belongs_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, program = waiting(monkeypatch)
    program.spawn.side_effect = lambda work: work.close()
    ours.connect(Mock(qpn=7, dials=True, admit=Mock(side_effect=[ConnectError("of QP 9"), None])))
    assert [ours.fate(7, {}), ours.fate(7, {})] == ["of QP 9", ""]


async def test_accept__of_a_qp_that_the_program_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = AsyncMock(side_effect=ArgumentError("QP to INIT: an argument is out of range"))
    monkeypatch.setattr(connects, "establish", refused)
    ours, _ = waiting(monkeypatch)
    ours._terms_of = lambda _: (Mock(), "h1", Terms({}, Mock(), Mock(), Mock()))
    with pytest.raises(ConnectError, match="QP 0x7 has failed before it was connected: QP to INIT"):
        await ours.accept(Mock(), Mock(qpn=7))
