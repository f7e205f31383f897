# SPDX-License-Identifier: Apache-2.0
"""An emulator that does not answer."""

from __future__ import annotations

import socket
from pathlib import Path
from threading import Thread

import pytest

from mrc.errors import StateError
from mrc.testbed import emulator as control
from mrc.testbed.faults import SOCKET


@pytest.mark.parametrize("answer", [b"", b'{"stats": {"pack'])
def test_ask__an_emulator_that_ends_meanwhile(tmp_path: Path, answer: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / SOCKET))
        listener.listen()

        def end() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        emulator = Thread(target=end)
        emulator.start()
        try:
            with pytest.raises(StateError, match="ended before it answered: rebuild the test bed"):
                control.ask(tmp_path, {"do": "status"})
        finally:
            emulator.join()


def test_is_running__many_requests_wait(tmp_path: Path) -> None:
    """No answer yet is not the end of the emulator."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / SOCKET))
        listener.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waiting:
            waiting.connect(str(tmp_path / SOCKET))
            assert control.is_running(tmp_path)
    assert not control.is_running(tmp_path)
