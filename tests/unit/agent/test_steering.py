# SPDX-License-Identifier: Apache-2.0
"""An engine that is steered over a socket."""

from __future__ import annotations

import socket
from typing import Any

from mrc.agent.steering import ProgramEngine
from mrc.engine import native
from mrc.engine.queue_pair import QueuePair
from mrc.enums import Seal
from mrc.trust.secret import Secret


class Recorder:
    """A socket that takes packets; `kept` are the objects, `sent` what was in them."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.sent: list[bytes] = []

    def fileno(self) -> int:
        return -1

    def send(self, packet: Any) -> int:
        self.kept.append(packet)
        self.sent.append(bytes(packet))
        return len(packet)


def test_submit__wipes_the_secrets_that_have_left() -> None:
    recorder = Recorder()
    opened = native.new_struct("mrc_agent_opened")
    connection: socket.socket = recorder  # type: ignore[assignment]
    engine = ProgramEngine(connection, opened, lambda frame: None, lambda reason: None)
    one, other = Secret.random(32), Secret.random(32)
    queue = QueuePair(sq_depth=16, mpr=128, max_wimm=8)
    command = queue.set_seal(Seal.AEAD, 5, random=one, peer_random=other, first=True)
    secrets = [bytes(command.keep.send), bytes(command.keep.receive)]  # type: ignore[attr-defined]
    assert engine.submit([command]) == 1
    assert all(secret in recorder.sent[0] for secret in secrets)
    assert recorder.kept[0] == bytes(len(recorder.sent[0]))
