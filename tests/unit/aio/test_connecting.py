# SPDX-License-Identifier: Apache-2.0
"""What an error of a connect says beside its cause."""

from __future__ import annotations

import pytest

from mrc.aio.connecting import about
from mrc.errors import MrcError, PathError, ProtocolError
from mrc.exchange.findings import no_answer

SILENT = no_answer("h1", ["10.0.0.1"], 4800)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            PathError(SILENT),
            f"{SILENT} TCP port 7000 of h1 answers: open both ports in the firewalls of both hosts;"
            " NAT (a masquerade) between them requires a VPN",
        ),
        (ProtocolError("the peer sent rubbish"), "h1: TCP port 7000: the peer sent rubbish"),
        (PathError("plane 1 to h1: the MTU is too small"), "plane 1 to h1: the MTU is too small"),
    ],
)
def test_about(error: MrcError, text: str) -> None:
    told = about("h1", 7000, error)
    assert str(told) == text
    assert type(told) is type(error)
