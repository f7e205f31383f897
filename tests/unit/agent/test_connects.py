# SPDX-License-Identifier: Apache-2.0
"""What a program hears of an exchange that fails."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from mrc.agent import connects
from mrc.agent.connects import Connects
from mrc.aio.local import Local, Terms
from mrc.enums import AgentKind
from mrc.errors import ConnectRefusedError, Kind
from mrc.exchange.oob import Channel


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
    ours._terms_of = lambda _: (Mock(), "h1", Terms({}, Mock(), Mock()))
    with pytest.raises(ConnectRefusedError):
        await ours.accept(Mock(), Mock(qpn=7))
    told = [call.args for call in program.send.mock_calls]
    assert told == ([(AgentKind.GONE, 7)] if known and kind is Kind.ENDED else [])
