# SPDX-License-Identifier: Apache-2.0
"""Two transports of this process, over loopback: what ranks tell each other of their groups."""

from __future__ import annotations

import atexit
import queue
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from slowness import PATIENCE

from mrc.errors import ConnectError
from mrc.group import MemberAddress
from mrc.torch.transport import GlooTransport

SPACE, USER = 7, 1
NOBODY = MemberAddress(
    bytes(16), "127.0.0.1", 1
).pack()  # its token is the smallest, so it has to dial


class Shim:
    """In place of the compiled library: keeps what it is told."""

    def __init__(self) -> None:
        self.told: queue.Queue[tuple[int, str, bool]] = queue.Queue()

    def attach(self, functions: object) -> None: ...

    def stop(self) -> None: ...

    def lost(self, user: int, peer: int, text: str, *, everything: bool) -> None:
        self.told.put((user, text, everything))


@contextmanager
def transport() -> Iterator[tuple[GlooTransport, Shim]]:
    shim: Any = Shim()
    made = GlooTransport(shim)
    try:
        yield made, shim
    finally:
        made._at_exit()
        atexit.unregister(made._at_exit)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[GlooTransport, Shim]]]:
    """Ranks 0 and 1 of a group of three, connected with each other."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with ExitStack() as held:
        found = [held.enter_context(transport()) for _ in range(2)]
        addresses = [made.address() for made, _ in found]
        for rank, (made, _) in enumerate(found):
            made.open(SPACE, USER)
            made.connect(SPACE, 1 - rank, addresses[1 - rank])
        yield found


def test_failed__the_others_are_told(two: list[tuple[GlooTransport, Shim]]) -> None:
    for made, _ in two:
        assert len(made.ready(SPACE, PATIENCE)) == 1
    two[0][0].failed(SPACE, "timed out")
    assert two[1][1].told.get(timeout=PATIENCE) == (USER, "rank 0: timed out", True)


def test_ready__the_others_are_told_that_it_failed(two: list[tuple[GlooTransport, Shim]]) -> None:
    for made, _ in two:
        made.ready(SPACE, PATIENCE)
    two[0][0].connect(SPACE, 2, NOBODY)
    with pytest.raises(ConnectError, match=r"^rank 2 did not connect within 0\.01 s$"):
        two[0][0].ready(SPACE, 0.01)
    said = "rank 0: rank 2 did not connect within 0.01 s"
    assert two[1][1].told.get(timeout=PATIENCE) == (USER, said, True)
