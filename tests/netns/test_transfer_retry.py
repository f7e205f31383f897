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


@pytest.mark.slow
def test_send__a_folder_with_refused_files_over_a_lost_path(
    hosts: Hosts, bed: Testbed, tmp_path: Path
) -> None:
    """What was refused before the loss, and after it, is told at both ends; so is what was stored.

    All files are of one pack, which is lost in its middle.
    """
    inbox, top = tmp_path / "inbox", tmp_path / "top"
    for folder in (top, inbox / "top"):
        folder.mkdir(parents=True)
    (inbox / "top" / "taken").write_bytes(b"theirs")
    for name in ("-refused", "taken"):  # the first and the last of the pack
        (top / name).write_bytes(b"ours")
    data = random.Random(1).randbytes(SIZE)
    names = [f"f{n:03}" for n in range(SIZE >> 17)]
    for n, name in enumerate(names):
        (top / name).write_bytes(data[n << 17 : n + 1 << 17])
    receiver = hosts.recv(inbox, "--once", "--json")
    sender = hosts.send("--json", "--rate", "40M", top)
    until(lambda: (inbox / "top" / names[len(names) // 4]).exists(), sender.lines)
    for plane in range(1, PLANES + 1):
        bed.fail(f"plane:{plane}")
    sender.until_says("the connection is lost")
    bed.heal()
    sent = printed("send", sender.ends(6))
    *_, last = receiver.ends(6).splitlines()  # a line for the lost connection is before
    got = printed("recv", last)
    assert sent["retries"] == 1
    for result in (sent, got):
        assert {each["name"] for each in result["failed"]} == {"top/-refused", "top/taken"}
        assert result["failed_count"] == 2
        assert [each["name"] for each in result["files"]] == [f"top/{name}" for name in names]
        assert result["bytes"] == SIZE and result["folders"] == 1
    assert sorted(os.listdir(inbox / "top")) == [*names, "taken"]
    assert (inbox / "top" / "taken").read_bytes() == b"theirs"
    assert b"".join((inbox / "top" / name).read_bytes() for name in names) == data
    assert os.listdir(inbox) == ["top"], "no mark is left"
