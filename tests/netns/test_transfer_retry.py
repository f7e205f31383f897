# SPDX-License-Identifier: Apache-2.0
"""`mrc send` connects again by itself when all paths were lost, or one end was stopped.

h0 --- plane 1 --- h1       100 Mbit/s each; the OOB exchange runs over a management network that no
 '----- plane 2 ---'        fault touches
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from netns.processes import Hosts
from printed import printed
from slowness import until

from mrc.testbed.bed import Testbed

SIZE = 32 << 20
PLANES = 2


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    with Testbed(f"retry-{os.getpid()}", planes=PLANES, t1=1, rate="100mbit") as bed:
        yield bed


@pytest.mark.slow
def test_send__goes_on_by_itself(hosts: Hosts, bed: Testbed, tmp_path: Path) -> None:
    """Both ends wait while no plane is left, and the receiver takes its sender for the same."""
    inbox, file = tmp_path / "inbox", tmp_path / "a"
    inbox.mkdir()
    file.write_bytes(random.Random(1).randbytes(SIZE))
    receiver = hosts.recv(inbox, "--once", "--json")
    sender = hosts.send("--json", file)
    receiver.until_received(SIZE // 4)
    for plane in range(1, PLANES + 1):
        bed.fail(f"plane:{plane}")
    until(lambda: any("all paths to h1 are lost" in line for line in sender.lines), sender.lines)
    bed.heal()
    result = printed("send", sender.ends(0))
    assert result["retries"] == 1 and result["resumed_bytes"] >= SIZE // 8
    receiver.ends(0)
    assert (inbox / "a").read_bytes() == file.read_bytes() and os.listdir(inbox) == ["a"]


@pytest.mark.slow
@pytest.mark.parametrize("stopped", ["sender", "receiver"])
def test_send__goes_on_after_a_stop(
    hosts: Hosts, bed: Testbed, tmp_path: Path, stopped: str
) -> None:
    """The other end takes the one that is stopped for lost. It goes on when it runs again."""
    inbox, file = tmp_path / "inbox", tmp_path / "a"
    inbox.mkdir()
    file.write_bytes(random.Random(1).randbytes(SIZE))
    receiver = hosts.recv(inbox, "--once", "--json")
    sender = hosts.send("--json", file)
    receiver.until_received(SIZE // 4)
    still, waits = (sender, receiver) if stopped == "sender" else (receiver, sender)
    os.kill(still.process.pid, signal.SIGSTOP)
    waits.until_says("are lost")
    os.kill(still.process.pid, signal.SIGCONT)
    result = printed("send", sender.ends(0))
    assert result["retries"] == 1 and result["resumed_bytes"] >= SIZE // 8
    receiver.ends(0)
    assert (inbox / "a").read_bytes() == file.read_bytes() and os.listdir(inbox) == ["a"]
