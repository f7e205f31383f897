# SPDX-License-Identifier: Apache-2.0
"""When a QP counts as stuck. tests/netns/test_endpoint.py shrinks an MTU under a QP."""

from __future__ import annotations

from typing import Any

import pytest
from endpoints import READ, WRITE, connected_pair, pattern

from mrc import Spraying
from mrc.aio import qp
from mrc.connect.proof import Proof
from mrc.enums import QpState, WcStatus
from mrc.errors import PathError, PathMtuError
from mrc.events import QpInfo


def info(sent: int, acknowledged: int, outstanding: int = 1) -> QpInfo:
    counts = dict.fromkeys(QpInfo.__struct_fields__, 0)
    fields: dict[str, Any] = counts | {"planes": (), "rtt_ns": None, "path_mtu": 1408}
    fields |= {"state": QpState.RTS, "status": WcStatus.SUCCESS, "outstanding": outstanding}
    fields |= {"first_sent_bytes": sent, "acknowledged_bytes": acknowledged}
    return QpInfo(**fields)


@pytest.mark.parametrize(
    ("before", "now", "size"),
    [
        (info(90_000, 10_000), info(90_000, 10_000), 1408),
        (info(90_000, 10_000), info(90_000, 10_100), 1408),  # small packets pass
        (info(90_000, 10_000), info(90_000, 11_408), 0),
        (info(10_700, 10_000), info(10_700, 10_000), 700),  # the last packet of a write
        (info(10_000, 10_000), info(90_000, 10_000), 0),  # sent a moment ago
        (info(90_000, 10_000), info(90_000, 10_000, outstanding=0), 0),
    ],
)
def test_stuck_bytes(before: QpInfo, now: QpInfo, size: int) -> None:
    assert qp._stuck_bytes(before, now) == size


async def test_watch__fails_the_qp_and_tells_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evidence is made up here; the last of it would acquit the QP."""
    proofs = iter([Proof({}, (0,)), Proof({1: 1408, 2: 256}, ()), Proof({1: 1024, 2: 512}, ())])

    async def prove(*_: Any, **__: Any) -> Proof:
        return next(proofs)

    monkeypatch.setattr(qp, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(qp, "prove", prove)
    monkeypatch.setattr(qp, "_stuck_bytes", lambda before, now: 1408)
    async with (
        connected_pair(spraying=Spraying(mtu_limit=1408)) as pair,
        pair.near_context.register(pattern(100_000), access=READ) as source,
        pair.far_context.register(bytearray(100_000), access=WRITE) as target,
    ):
        with pytest.raises(PathMtuError, match=r"packets of 1408 bytes .* only up to 1024: "):
            while True:
                await pair.near.write(source, target.remote)
        with pytest.raises(PathMtuError):
            pair.near.post(source, target.remote)
        with pytest.raises(PathError, match="ended the connection: packets of 1408 bytes"):
            await anext(pair.far.immediates())
