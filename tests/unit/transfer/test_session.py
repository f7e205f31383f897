# SPDX-License-Identifier: Apache-2.0
"""Files over several QPs, over loopback: QPs join, carry data, fail and leave."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from endpoints import BUDGET_SECONDS, LOOPBACK, listening_to_itself, loopback_config
from msgspec.structs import replace
from transfer_ends import blocked_until, both, call_before, make, names, receiving, sending

import mrc
from mrc import ConnectError, Context, Listener, PeerGoneError, PlaneInfo
from mrc.config import Sockets
from mrc.enums import QpState, WcStatus
from mrc.events import QpInfo
from mrc.transfer import sender, session
from mrc.transfer.files import PartFile
from mrc.transfer.limits import CHUNK_BYTES
from mrc.transfer.messages import Announced
from mrc.transfer.session import (
    JOIN,
    Joins,
    TransferSession,
    accept_session,
    connect_session,
    sum_of,
)

QPS = 3


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the QPs requests more QPs, up to three."""
    monkeypatch.setattr(sender, "MAX_QPS", QPS)
    monkeypatch.setattr(sender, "SAMPLE_SECONDS", 0.001)
    monkeypatch.setattr(sender, "SAMPLES", 1)
    monkeypatch.setattr(sender, "SETTLING", 0)
    monkeypatch.setattr(sender, "held_up", lambda info, left_bytes: True)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterable[threading.Event]:
    """Targets are written only after the event is set: until then no file is complete."""
    opened = threading.Event()
    call_before(monkeypatch, PartFile, "write", blocked_until(opened))
    yield opened
    opened.set()


@dataclass
class Ends:
    sender: TransferSession
    receiver: TransferSession
    near: Context
    far: Context
    listener: Listener
    joins: Joins

    async def until_joined(self, qps: int = QPS) -> None:
        while min(len(self.sender.qps), len(self.receiver.qps)) < qps:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@asynccontextmanager
async def sessions(engines: int = 1) -> AsyncIterator[Ends]:
    joins = Joins()

    async def take(listener: Listener) -> None:
        async for qp in listener:
            await joins.take(qp)

    config, private = loopback_config(sockets=Sockets(engines=engines)), {"service": "files"}
    async with (
        mrc.open(config) as near,
        listening_to_itself(config, private=private, admit=joins.admit) as (far, listener),
    ):
        accepting = asyncio.create_task(listener.accept())
        connecting = connect_session(
            near, LOOPBACK[4], listener.port, announced=Announced(), timeout=BUDGET_SECONDS
        )
        opening = asyncio.create_task(connecting.__aenter__())
        async with accept_session(far, await accepting, joins) as receiver:
            sender = await opening
            taking = asyncio.create_task(take(listener))
            try:
                yield Ends(sender, receiver, near, far, listener, joins)
            finally:
                taking.cancel()
                await connecting.__aexit__(None, None, None)


@pytest.mark.more
async def test_send_files__a_large_one_over_a_qp_of_each_engine(
    tmp_path: Path, inbox: Path, disk: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "ENGINE_BYTES", 3 * CHUNK_BYTES)
    small, large = os.urandom(2 * CHUNK_BYTES), os.urandom(9 * CHUNK_BYTES)
    async with sessions(engines=QPS) as ends:
        small_one = [make(tmp_path, "small", small)]
        disk.set()
        await both(sending(ends.sender, small_one), receiving(ends.receiver, inbox))
        assert len(ends.sender.qps) == 1
        disk.clear()
        large_one = [make(tmp_path, "large", large)]
        received = receiving(ends.receiver, inbox, window_bytes=4 * CHUNK_BYTES)
        work = asyncio.create_task(both(sending(ends.sender, large_one), received))
        await ends.until_joined()  # the window is full, and the disk does not empty it
        disk.set()
        await work
        for context, session in ((ends.near, ends.sender), (ends.far, ends.receiver)):
            qps = [sum(qp._dispatcher is each for qp in session.qps) for each in context._all()]
            assert qps == [1] * QPS
    assert (inbox / "small").read_bytes() == small
    assert (inbox / "large").read_bytes() == large


@pytest.mark.more
@pytest.mark.usefixtures("held_up")
async def test_send_files__over_several_qps(
    tmp_path: Path, inbox: Path, disk: threading.Event
) -> None:
    data = [os.urandom(size) for size in (30 * CHUNK_BYTES + 1, 0, 4096)]
    paths = [make(tmp_path, f"file{n}", content) for n, content in enumerate(data)]
    async with sessions() as ends:
        received = receiving(ends.receiver, inbox, window_bytes=8 * CHUNK_BYTES)
        work = asyncio.create_task(both(sending(ends.sender, paths), received))
        await ends.until_joined()  # by then the first QP has filled the window, not sent all
        disk.set()
        sent, got = await work
        assert [file.digest for file in sent] == [file.digest for file in got]
        for qp in ends.sender.qps:
            assert (await qp.info()).acknowledged_bytes >= CHUNK_BYTES
        for session, field in (
            (ends.sender, "acknowledged_bytes"),
            (ends.receiver, "received_bytes"),
        ):
            moved = getattr(await session.query(), field)
            assert sum(map(len, data)) <= moved < 1.01 * sum(map(len, data))
        near, far = ends.near, ends.far
        assert len(near.qps) == len(far.qps) == QPS
    for path, content in zip(paths, data, strict=True):
        assert (inbox / Path(path).name).read_bytes() == content


async def test_sessions__close_the_qps_that_joined(tmp_path: Path, inbox: Path) -> None:
    async with sessions() as ends:
        both_open = ends.until_joined()
        async with asyncio.timeout(BUDGET_SECONDS), asyncio.TaskGroup() as group:
            for _ in range(QPS - 1):
                group.create_task(ends.sender.joined.join(ends.receiver.joined.token))
            group.create_task(both_open)
        qps = [*ends.sender.qps, *ends.receiver.qps]
        assert not any(qp.closed for qp in qps)
        await both(
            sending(ends.sender, [make(tmp_path, "a", b"1")]), receiving(ends.receiver, inbox)
        )
    assert len(qps) == 2 * QPS and all(qp.closed for qp in qps)


@pytest.mark.more
@pytest.mark.usefixtures("held_up")
async def test_send_files__one_of_the_qps_ends(
    tmp_path: Path, inbox: Path, disk: threading.Event
) -> None:
    path = make(tmp_path, "a", bytes(40 * CHUNK_BYTES))
    async with sessions() as ends:
        sent = asyncio.create_task(sending(ends.sender, [path]))
        received = asyncio.create_task(receiving(ends.receiver, inbox))
        await ends.until_joined()
        await ends.receiver.joined.qps[0].abort()
        (outcome,) = await both(sent)
        received.cancel()
        disk.set()
        await both(received)
    assert isinstance(outcome, PeerGoneError) and "ended without closing" in str(outcome)
    assert "a" not in names(inbox)


async def test_join__only_a_session_that_is_open_and_not_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with sessions() as ends:
        token = ends.receiver.joined.token
        assert len(token) == 32
        for wrong in ("0" * 32, token[:-1], None, [token]):
            with pytest.raises(ConnectError, match="refused: no open session has this token"):
                private = {"service": JOIN, "token": wrong}
                await ends.near.connect(LOOPBACK[4], ends.listener.port, private=private)
        assert len(ends.receiver.qps) == 1
        monkeypatch.setattr(session, "MAX_QPS", 2)
        await ends.sender.joined.join(token)
        await ends.until_joined(2)
        with pytest.raises(ConnectError, match="already has 2 QPs"):
            await ends.sender.joined.join(token)
        assert len(ends.receiver.qps) == 2
        ends.joins.refusal = "busy"
        with pytest.raises(ConnectError, match="the peer refused: busy"):
            await ends.near.connect(LOOPBACK[4], ends.listener.port)


async def test_widen__does_without_when_nobody_lets_it_in(
    tmp_path: Path, inbox: Path, held_up: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path, "a", bytes(20 * CHUNK_BYTES))
    async with sessions() as ends:
        await ends.listener.close()
        sent, _ = await both(sending(ends.sender, [path]), receiving(ends.receiver, inbox))
        assert sent[0].bytes == 20 * CHUNK_BYTES and len(ends.sender.qps) == 1


# ---- Evidence -------------------------------------------------------------------------------

PLANE = PlaneInfo(
    plane=1, sent_packets=5, sent_bytes=6, lost_packets=1, received_packets=2, received_bytes=3,
    rtt_ns=120_000_000, base_rtt_ns=100_000_000, inflight_bytes=2_000_000, cwnd_bytes=2_000_000,
    suspended=False,
)  # fmt: skip
WINDOW = 4096 * 1344
INFO = QpInfo(
    qpn=7, state=QpState.RTS, status=WcStatus.SUCCESS, outstanding=2, sent_packets=10,
    retransmitted_packets=1, spurious_packets=0, first_sent_bytes=12,
    acknowledged_bytes=11, received_bytes=6, cwnd_bytes=4_000_000, inflight_bytes=4_000_000,
    rtt_ns=120_000_000, path_mtu=1344, timeouts=0, peer_mpr=4096,
    planes=(PLANE, replace(PLANE, plane=2, base_rtt_ns=90_000_000)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("inflight_bytes", "base_rtt_ns", "left_bytes", "held"),
    [
        (WINDOW, 100_000_000, 16 * WINDOW, True),
        (WINDOW * 3 // 4, 5_000_000, 1 << 40, True),
        (WINDOW * 3 // 4 - 1, 100_000_000, 1 << 40, False),
        (WINDOW, 4_999_999, 1 << 40, False),
        (WINDOW, None, 1 << 40, False),
        (WINDOW, 100_000_000, 16 * WINDOW - 1, False),
    ],
)
def test_held_up__table(
    inflight_bytes: int, base_rtt_ns: int | None, left_bytes: int, held: bool
) -> None:
    planes = (replace(PLANE, base_rtt_ns=base_rtt_ns), replace(PLANE, base_rtt_ns=None))
    info = replace(INFO, inflight_bytes=inflight_bytes, planes=planes)
    assert sender.held_up(info, left_bytes) is held
    assert sender.held_up(sum_of([info] * 5), 5 * left_bytes) is held


async def test_forget__leaves_the_session_that_has_replaced_it() -> None:
    joins, tasks = Joins(), [asyncio.create_task(asyncio.sleep(0)) for _ in range(2)]
    joins.transfers["t"] = tasks[1]
    joins.forget("t", tasks[0])
    assert joins.transfers == {"t": tasks[1]}
    joins.forget("t", tasks[1])
    joins.forget("t", tasks[1])
    assert not joins.transfers
    await asyncio.gather(*tasks)


def test_sum_of__as_if_it_were_one() -> None:
    other = replace(
        INFO, qpn=8, acknowledged_bytes=100, path_mtu=1124, rtt_ns=5,
        planes=(
            replace(PLANE, sent_bytes=60, base_rtt_ns=None, rtt_ns=None, suspended=True, slow=True,
                    share_percent=20),
        ),
    )  # fmt: skip
    total = sum_of([INFO, other])
    assert (total.qpn, total.acknowledged_bytes, total.peer_mpr) == (7, 111, 8192)
    assert (total.path_mtu, total.rtt_ns) == (1124, 120_000_000)
    first, second = total.planes
    assert (first.plane, first.sent_bytes, first.base_rtt_ns) == (1, 66, 100_000_000)
    assert first.cwnd_bytes == 4_000_000
    assert (first.rtt_ns, first.suspended) == (120_000_000, False)
    assert (first.slow, first.share_percent) == (False, 60)
    assert second == INFO.planes[1]
    assert sum_of([INFO]) == INFO
