# SPDX-License-Identifier: Apache-2.0
"""For how long an end waited, and for which part: a slow disk, a slow source, a slow network."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slowness import PATIENCE
from transfer_ends import Ends, both, chunks, make, receiving, sending, sessions, turns, until

from mrc.transfer import sender
from mrc.transfer.files import PartFile
from mrc.transfer.limits import CHUNK_BYTES
from mrc.transfer.results import Waits
from mrc.transfer.sender import CHUNKS_IN_FLIGHT

CHUNKS = 2 * CHUNKS_IN_FLIGHT
HELD_SECONDS = 0.2


class Gate:
    """Calls of a function wait until it opens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.waits = threading.Event()
        self.open = threading.Event()
        function = getattr(owner, name)

        def held(*args: Any) -> Any:
            self.waits.set()
            assert self.open.wait(PATIENCE)
            return function(*args)

        monkeypatch.setattr(owner, name, held)


async def held(
    ends: Ends, tmp_path: Path, inbox: Path, stuck: Callable[[], object], go_on: Callable[[], None]
) -> tuple[Waits, Waits, float]:
    """Copies a file that stops when `stuck`, until `go_on` some time later. Returns what the sender
    and the receiver waited for, and the time of all.
    """
    begin = time.monotonic()
    path = make(tmp_path, "a", os.urandom(CHUNKS * CHUNK_BYTES))
    copy = asyncio.create_task(both(sending(ends.sender, [path]), receiving(ends.receiver, inbox)))
    await until(stuck)
    await turns(100)
    await asyncio.sleep(HELD_SECONDS)  # the time to be measured
    go_on()
    sent, received = await copy
    assert sent[0].digest == received[0].digest
    seconds = time.monotonic() - begin
    return ends.sender.waiting.seconds(), ends.receiver.waiting.seconds(), seconds


def accepted(ends: Ends) -> bool:
    """The receiver waits for chunks."""
    return ends.receiver.joined.on_chunk is not None


def check(waits: Waits, part: str, seconds: float) -> None:
    """Mostly this part, and all of them together not longer than it took."""
    found = {name: getattr(waits, name) for name in waits.__struct_fields__}
    assert found[part] >= HELD_SECONDS, found
    assert sum(found.values()) <= seconds, found


@pytest.mark.more
async def test_waiting__for_the_disk(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, PartFile, "write")
    async with sessions() as ends:

        def stuck() -> bool:
            return len(chunks(ends.out)) == CHUNKS_IN_FLIGHT and not ends.out.waiting

        sent, received, seconds = await held(ends, tmp_path, inbox, stuck, gate.open.set)
    check(sent, "storing_seconds", seconds)
    check(received, "storing_seconds", seconds)


@pytest.mark.more
async def test_waiting__for_the_source(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, sender, "populate_for_reads")
    async with sessions() as ends:

        def stuck() -> bool:
            return gate.waits.is_set() and accepted(ends)

        sent, received, seconds = await held(ends, tmp_path, inbox, stuck, gate.open.set)
    check(sent, "reading_seconds", seconds)
    check(received, "network_seconds", seconds)


@pytest.mark.more
async def test_waiting__for_the_network(
    tmp_path: Path, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, sender, "populate_for_reads")
    async with sessions() as ends:

        def in_flight() -> bool:
            if accepted(ends) and not gate.open.is_set():
                ends.out.held = True
                gate.open.set()
            return bool(ends.out.waiting == CHUNKS_IN_FLIGHT)

        def go_on() -> None:
            ends.out.held = False
            ends.out.release()

        sent, received, seconds = await held(ends, tmp_path, inbox, in_flight, go_on)
    check(sent, "network_seconds", seconds)
    check(received, "network_seconds", seconds)
