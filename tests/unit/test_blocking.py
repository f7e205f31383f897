# SPDX-License-Identifier: Apache-2.0
"""mrc without asyncio: the same calls, errors and ends."""

from __future__ import annotations

import inspect
import socket
import threading

import pytest
from endpoints import BUDGET_SECONDS, LOOPBACK, loopback_config

import mrc
from mrc import Access, ConnectError, InUseError, PeerGoneError, StateError, Write, blocking


def test_blocking__writes_batches_and_immediates() -> None:
    target = bytearray(300)
    with (
        blocking.Context(loopback_config()) as there,
        there.register(target, access=Access.REMOTE_WRITE) as mr,
        there.listen(LOOPBACK[4], 0, private=mr.remote.to_dict()) as listener,
        blocking.Context(loopback_config()) as here,
        here.register(b"abc" * 100) as source,
        here.connect(LOOPBACK[4], listener.port) as qp,
        listener.accept(timeout=BUDGET_SECONDS) as peer,
    ):
        remote = mrc.RemoteMemory.from_dict(qp.private)
        assert qp.write(source, remote, length=150).bytes == 150
        at = range(150, 300, 50)
        done = qp.write_many(
            Write(source, remote, length=50, local_offset=i, remote_offset=i) for i in at
        )
        assert done.bytes == 150
        assert target == b"abc" * 100
        qp.write_imm(imm=4)
        assert next(peer.immediates(timeout=BUDGET_SECONDS)).imm == 4
        with pytest.raises(TimeoutError):
            next(peer.immediates(timeout=0.01))
        assert qp.query().acknowledged_bytes == 300
        assert len(qp.evs()) == len(here.wait(qp.aio.evs()))
        qp.close()
        assert list(peer.immediates()) == []


def test_blocking__events_messages_and_the_end_of_the_peer() -> None:
    with (
        blocking.Context(loopback_config()) as there,
        there.listen(LOOPBACK[4], 0, messages=True) as listener,
        blocking.Context(loopback_config()) as here,
        here.connect(LOOPBACK[4], listener.port, messages=True) as qp,
        listener.accept(timeout=BUDGET_SECONDS) as peer,
        there.messages() as inbox,
        here.messages() as outbox,
    ):
        outbox.send(qp, b"hello", tag=3)
        text = bytearray(5)
        message = inbox.recv(text, peer, tag=3)
        assert (bytes(text), message.bytes, message.tag) == (b"hello", 5, 3)
        assert message.qp is peer.aio
        assert qp.deny(0) == (0,)
        event = next(qp.events(timeout=BUDGET_SECONDS))
        assert isinstance(event, mrc.EvEvent) and event.state is mrc.EvState.DENIED
        assert qp.allow(0) == (0,)
        peer.close()
        qp.until_peer_gone()


@pytest.mark.parametrize("name", ["QP", "Listener", "Context"])
def test_blocking__has_the_arguments_of_mrc(name: str) -> None:
    ours, theirs = getattr(blocking, name), getattr(mrc, name)
    shared = {each for each in vars(ours) if not each.startswith("_")} & set(dir(theirs))
    for each in shared - {"private", "port", "register"}:
        kinds = (getattr(kind, each) for kind in (ours, theirs))
        here, there = (inspect.signature(kind, eval_str=True) for kind in kinds)
        assert list(here.parameters.values()) == list(there.parameters.values()), each
    assert shared


def test_blocking__errors_are_those_of_mrc_and_everything_ends() -> None:
    with blocking.Context(loopback_config()) as context:
        with pytest.raises(ConnectError, match="no program listens"):
            context.connect(LOOPBACK[4], 1)
        listener = context.listen(LOOPBACK[4], 0)
        with pytest.raises(KeyError), context.connect(LOOPBACK[4], listener.port):
            raise KeyError
        peer = next(iter(listener))
        with pytest.raises(PeerGoneError):
            next(peer.immediates())
        peer.close()
        listener.close()
        assert list(listener) == []
    with pytest.raises(StateError, match="closed"):
        context.aio.register(b"abc")
    assert "mrc" not in {thread.name for thread in threading.enumerate()}


def test_blocking__a_context_that_cannot_be_opened_leaves_no_thread() -> None:
    with socket.create_server((LOOPBACK[4], 0)) as taken:
        config = loopback_config(metrics=taken.getsockname()[:2])
        with pytest.raises(InUseError), blocking.Context(config):
            pass
    assert "mrc" not in {thread.name for thread in threading.enumerate()}
