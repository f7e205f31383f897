# SPDX-License-Identifier: Apache-2.0
"""mrc.blocking: the same names, signatures and texts as mrc, and objects that stay the same."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any

import pytest
from endpoints import BUDGET_SECONDS, LOOPBACK, loopback_config

import mrc
from mrc import blocking
from mrc.blocking import mirror

MIRRORED = [
    name
    for name in mrc.__all__
    if isinstance(getattr(mrc, name), type) and mirror.mirror_of(getattr(mrc, name))
]
_CROSSING = r"Opening\[(.*)\]|AsyncIterator(\[.*\])|asyncio\.Future(\[.*\])"


def test_all__the_same_names() -> None:
    assert blocking.__all__ == mrc.__all__
    assert set(MIRRORED) >= {"Context", "QP", "Listener", "Region"}
    modules = {"perf", "testbed", "transfer"}
    for module in modules:
        ours, theirs = getattr(blocking, module), getattr(mrc, module)
        assert ours.__all__ == theirs.__all__ and ours is not theirs
        assert dir(ours) == sorted(ours.__all__)
    others = set(mrc.__all__) - set(MIRRORED) - {"open"} - modules
    assert all(getattr(blocking, name) is getattr(mrc, name) for name in others)


@pytest.mark.parametrize("name", MIRRORED)
def test_class__has_all_calls_with_their_signatures_and_texts(name: str) -> None:
    ours, theirs = getattr(blocking, name), getattr(mrc, name)
    public = {each for each in dir(theirs) if not each.startswith("_")}
    fields = set(getattr(theirs, "__struct_fields__", ()))  # of structs: values, not calls
    assert {each for each in dir(ours) if not each.startswith("_")} == public - fields
    assert inspect.getdoc(ours) == inspect.getdoc(theirs)
    for each in public - fields:
        here, there = (inspect.getattr_static(kind, each) for kind in (ours, theirs))
        assert inspect.getdoc(here) == inspect.getdoc(there), each
        if isinstance(there, property):
            continue
        assert not inspect.iscoroutinefunction(here)
        ours_signature, signature = inspect.signature(here), inspect.signature(there)
        assert ours_signature.parameters == signature.parameters, each
        returned = str(signature.return_annotation)
        if crosses := re.fullmatch(_CROSSING, returned):
            returned = "".join(filter(None, crosses.groups()))
            assert str(ours_signature.return_annotation).endswith(returned), each
        else:
            assert ours_signature.return_annotation == returned, each


def test_open__has_the_fields_of_the_configuration() -> None:
    fields = list(inspect.signature(mrc.ContextConfig).parameters)
    for each in (mrc.open, blocking.open):
        assert list(inspect.signature(each).parameters) == ["config", *fields]


@contextmanager
def pair() -> Iterator[tuple[Any, Any, Any, Any]]:
    """A writer's QP and region, the handle of the peer's memory, and the peer's QP."""
    with (
        blocking.open(loopback_config()) as far,
        far.register(bytearray(4096), writable=True) as target,
        far.listen(LOOPBACK[4], 0, private=target.handle.to_dict()) as listener,
        blocking.open(loopback_config()) as near,
        near.register(bytes(range(256)) * 16) as region,
        near.connect(LOOPBACK[4], listener.port) as qp,
        listener.accept(timeout=BUDGET_SECONDS) as peer,
    ):
        yield qp, region, mrc.RemoteMemory.from_dict(qp.peer.private), peer


def test_objects__cross_the_border_as_what_they_are() -> None:
    with pair() as (qp, region, remote, peer):
        assert isinstance(qp, blocking.QP) and isinstance(region, blocking.Region)
        assert qp.write(region[8:16], remote[100:]) == 8
        assert qp.write(region, remote) == region.length == 4096
        assert qp.post_many([mrc.Write(region[:], remote, 9)]).result(BUDGET_SECONDS) == 4096
        assert next(peer.immediates()).imm == 9
        assert repr(qp).startswith("<QP 0x")


def test_post__its_future_waits_times_out_fails_and_is_cancelled() -> None:
    with pair() as (qp, region, remote, _):
        writes = [qp.post(region[:8], remote) for _ in range(1000)]
        assert [each.result(BUDGET_SECONDS) for each in writes] == [8] * 1000
        qp.deny(*range(len(qp.evs())))
        stuck = qp.post(region[:8], remote)
        with pytest.raises(TimeoutError):
            stuck.result(timeout=0.01)
        assert not stuck.done() and stuck.cancel() and stuck.cancelled()
        with pytest.raises(CancelledError):
            stuck.result(BUDGET_SECONDS)
        failing = qp.post(region[:8], remote)
        qp.close()
        assert isinstance(failing.exception(BUDGET_SECONDS), mrc.MrcError)
        with pytest.raises(mrc.StateError, match="is closed"):
            qp.post(region[:8], remote)


def test_bare_and_wrapped__inside_sequences() -> None:
    with pair() as (qp, _, _, peer):
        assert mirror.bare([qp, 1]) == [qp._aio, 1]
        loop = qp._loop
        assert mirror.wrapped(loop, (qp._aio, peer._aio, 3)) == (qp, peer, 3)
