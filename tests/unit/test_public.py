# SPDX-License-Identifier: Apache-2.0
"""The public names, imports without the compiled engine, modules that the core names by
strings, and mrc without asyncio.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import socket
import subprocess
import sys
import threading
import typing
from collections.abc import Iterator

import pytest
import walls
from endpoints import BUDGET_SECONDS, LOOPBACK, loopback_config
from slowness import PATIENCE

import mrc
from mrc import ConnectError, InUseError, PeerGoneError, StateError, Write, blocking, products

CLASSES = [name for name in mrc.__all__ if isinstance(getattr(mrc, name), type)]


def signatures(cls: type) -> Iterator[object]:
    """The types that a caller of a class passes: fields, arguments of methods."""
    if dataclasses.is_dataclass(cls):
        for name, hint in typing.get_type_hints(cls).items():
            if not name.startswith("_"):
                yield hint
    for name, member in inspect.getmembers(cls):
        function = getattr(member, "__func__", member)
        ours = inspect.isfunction(function) and function.__module__.startswith("mrc.")
        if ours and not name.startswith("_"):
            hints = typing.get_type_hints(function)
            yield from (hint for argument, hint in hints.items() if argument != "return")


def parts(hint: object) -> Iterator[type]:
    """The classes of mrc in a type, such as those in `tuple[QpInfo, ...] | None`."""
    if isinstance(hint, type) and hint.__module__.startswith("mrc"):
        yield hint
    for part in typing.get_args(hint):
        yield from parts(part)


@walls.needs("programs")
@pytest.mark.parametrize("name", CLASSES)
def test_classes__of_signatures_are_public(name: str) -> None:
    used = {part.__name__ for hint in signatures(getattr(mrc, name)) for part in parts(hint)}
    assert used <= {*mrc.__all__, *vars(mrc.config)}


def test_all__is_no_longer_than_people_read() -> None:
    assert len(mrc.__all__) <= 60
    assert dir(mrc) == sorted(mrc.__all__)


def test_events__are_equal_whenever_they_happened() -> None:
    one, other = (mrc.PlaneEvent(2, True, mrc.EventReason.PROBES, at_ns=at) for at in (1, 2))
    back = mrc.PlaneEvent(2, False, mrc.EventReason.PROBES, at_ns=1)
    port = mrc.PortEvent(2, True, mrc.EventReason.PROBES, at_ns=1)
    assert [one == each for each in (other, back, port)] == [True, False, False]
    assert [one != each for each in (other, back, port)] == [False, True, True]
    assert hash(one) == hash(other)


def test_public_names__are_all_there() -> None:
    for name in mrc.__all__:
        assert getattr(mrc, name) is not None


def test_public_names__only_what_programs_need() -> None:
    """The engine's own names, and those of before."""
    engine = {"Access", "Completion", "WcOpcode", "WrOpcode", "SendQueue", "HeldBuffer", "MR"}
    assert not engine & set(mrc.__all__)


def test_public_names__no_others() -> None:
    with pytest.raises(AttributeError, match="'mrc' has no attribute 'Endpoint'"):
        mrc.Endpoint  # type: ignore[attr-defined]  # noqa: B018


_WITHOUT_ENGINE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in ("mrc._core", "mrc._sim", "mrc._emu"):
            raise ImportError(f"{name} is not compiled")

sys.meta_path.insert(0, Refuse())
"""

_HELLO = """
import mrc
from mrc.connect.oob import Attributes, Hello, decode_body, encode_frame

attributes = Attributes(7, 1, 1024, 1024, 8, 'icrc', 4791, ())
said = Hello(host="h0", attributes=attributes).to_dict()
try:
    Hello.from_dict(decode_body(encode_frame(said)[4:]))
except mrc.ProtocolError as error:
    print(error)
try:
    mrc.Context
except ImportError as error:
    print(error)
"""


def without_engine(script: str) -> str:
    command = [sys.executable, "-c", _WITHOUT_ENGINE + script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_hello__can_be_read_without_the_engine() -> None:
    assert without_engine(_HELLO).splitlines() == [
        "the peer sent a wrong hello: "
        "attributes.ports: must be an array of 1 to 32, not an array of 0",
        "mrc._core is not compiled",
    ]


# ---- The modules that the core names by strings -------------------------------------------------


PLACES = [f"mrc.{place}" for places in products.RESULTS.values() for place in places]
MODULES = {
    *products.COMMANDS.values(),
    *products.FINDINGS,
    products.PAGE,
    products.KEEPER,
    products.READINGS,
    *(place.rpartition(".")[0] for place in PLACES),
}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_module__is_there_if_its_package_is(module: str) -> None:
    package = ".".join(module.split(".")[:2])
    assert products.has(module) or not products.has(package)


def test_load__of_a_product_that_is_not_there() -> None:
    assert products.load("mrc.absent.findings") is None


# ---- mrc.blocking: the same calls, errors and ends ----------------------------------------------


def test_blocking__writes_batches_and_immediates() -> None:
    target = bytearray(300)
    with (
        blocking.open(loopback_config()) as there,
        there.register(target, writable=True) as region,
        there.listen(LOOPBACK[4], 0, private=region.handle.to_dict()) as listener,
        blocking.open(loopback_config()) as here,
        here.register(b"abc" * 100) as source,
        here.connect(LOOPBACK[4], listener.port) as qp,
        listener.accept(timeout=BUDGET_SECONDS) as peer,
    ):
        remote = mrc.RemoteMemory.from_dict(qp.peer.private)
        assert qp.write(source[:150], remote) == 150
        at = range(150, 300, 50)
        done = qp.post_many(Write(source[i : i + 50], remote[i:]) for i in at)
        assert done.result(BUDGET_SECONDS) == 150
        assert target == b"abc" * 100
        for whole in ([Write(source[:], remote)], (Write(source[:], remote) for _ in range(1))):
            assert qp.post_many(whole).result(BUDGET_SECONDS) == 300
        assert [done.result() for done in [qp.post(imm=imm) for imm in (4, 5)]] == [0, 0]
        immediates = peer.immediates(timeout=BUDGET_SECONDS)
        assert [next(immediates).imm for _ in range(2)] == [4, 5]
        with pytest.raises(TimeoutError):
            next(peer.immediates(timeout=0.01))
        assert qp.info().acknowledged_bytes == 900
        assert [ev.index for ev in qp.evs()] == list(range(8))
        source.close()
        with pytest.raises(StateError, match=r"src: .* is closed"):
            qp.write(source, remote)
        qp.close()
        assert list(peer.immediates()) == []


@walls.needs("programs")
def test_blocking__events_messages_and_the_end_of_the_peer() -> None:
    with (
        blocking.open(loopback_config()) as there,
        there.listen(LOOPBACK[4], 0, messages=True) as listener,
        blocking.open(loopback_config()) as here,
        here.connect(LOOPBACK[4], listener.port, messages=True) as qp,
        listener.accept(timeout=BUDGET_SECONDS) as peer,
        there.messages() as inbox,
        here.messages() as outbox,
    ):
        outbox.send(qp, b"hello", tag=3)
        text = bytearray(5)
        message = inbox.recv(text, peer, tag=3)
        assert (bytes(text), message.bytes, message.tag) == (b"hello", 5, 3)
        assert message.qp.qpn == peer.qpn
        assert qp.deny(0) == (0,)
        event = next(qp.events(timeout=BUDGET_SECONDS))
        assert isinstance(event, mrc.EvEvent) and event.state is mrc.EvState.DENIED
        assert qp.allow(0) == (0,)
        peer.close()
        assert qp.until_closed() == mrc.Ended(True, None) == qp.ended


def test_blocking__errors_are_those_of_mrc() -> None:
    with blocking.open(loopback_config()) as context:
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
        context.register(b"abc")


def test_blocking__a_context_that_cannot_be_opened_leaves_nothing() -> None:
    with socket.create_server((LOOPBACK[4], 0)) as taken:
        config = loopback_config(metrics=taken.getsockname()[:2])
        before = {*os.listdir("/proc/self/fd")}
        with pytest.raises(InUseError), blocking.open(config):
            pass
        assert {*os.listdir("/proc/self/fd")} <= before


def test_blocking__iterators_outlive_a_timeout() -> None:
    with (
        blocking.open(loopback_config()) as there,
        there.listen(LOOPBACK[4], 0) as listener,
        blocking.open(loopback_config()) as here,
        here.connect(LOOPBACK[4], listener.port) as qp,
        listener.accept(timeout=BUDGET_SECONDS) as peer,
    ):
        immediates = peer.immediates(timeout=0.01)
        with pytest.raises(TimeoutError):
            next(immediates)
        qp.write(imm=7)
        assert next(peer.immediates()).imm == 7
        with pytest.raises(TimeoutError):
            next(immediates)


def test_blocking__the_end_of_a_context_ends_calls_of_other_threads() -> None:
    """Otherwise such a thread keeps the process from its end."""
    ended: list[BaseException] = []
    waits = threading.Event()

    def wait(listener: blocking.Listener) -> None:
        waits.set()
        try:
            listener.accept()
        except StateError as error:
            ended.append(error)

    with blocking.open(loopback_config()) as context:
        listener = context.listen(LOOPBACK[4], 0)
        thread = threading.Thread(target=wait, args=(listener,))
        thread.start()
        assert waits.wait(BUDGET_SECONDS)
    thread.join(BUDGET_SECONDS)
    assert not thread.is_alive()
    assert "is closed" in str(ended[0])
    with pytest.raises(StateError, match="the Context is closed"):
        listener.accept()


def test_blocking__a_call_inside_admit_would_wait_for_itself() -> None:
    heard: list[str] = []
    with blocking.open(loopback_config()) as context:

        def admit(_: mrc.Peer) -> bool:
            with pytest.raises(StateError, match="would wait for itself") as refused:
                context.connect(LOOPBACK[4], 1)
            heard.append(str(refused.value))
            return False

        with (
            context.listen(LOOPBACK[4], 0, admit=admit) as listener,
            pytest.raises(ConnectError, match="does not admit"),
        ):
            context.connect(LOOPBACK[4], listener.port)
    assert len(heard) == 1


_CHILD = """\
import os, signal, sys
sys.path[:0] = {paths!r}
from endpoints import LOOPBACK, loopback_config
from mrc import (StateError, blocking)

with blocking.open(loopback_config()) as context:
    listener = context.listen(LOOPBACK[4], 0)
    region = context.register(b"a")
    with listener, context.connect(LOOPBACK[4], listener.port) as qp:
        child = os.fork()
        if child == 0:
            for call in (listener.accept, qp.info, qp.until_closed, qp.close, region.close,
                         lambda: qp.write(imm=1), lambda: qp.post(imm=1),
                         lambda: context.connect(LOOPBACK[4], listener.port)):
                try:
                    call()
                except StateError as error:
                    assert "fork" in str(error), error
                else:
                    assert False, call
        else:
            assert os.waitpid(child, 0)[1] == 0
            assert qp.info().qpn
if child != 0:
    print("both have left")
"""


def test_blocking__a_child_of_fork_gets_errors_and_leaves() -> None:
    """It waited for a thread of its parent, for ever."""
    paths = [each for each in sys.path if each]
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _CHILD.format(paths=paths)],
        capture_output=True, text=True, check=False, timeout=BUDGET_SECONDS,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("both have left\n", 0), done.stderr
