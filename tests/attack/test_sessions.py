# SPDX-License-Identifier: Apache-2.0
"""Hostile peers of `mrc recv` and `mrc perf --server` that connect correctly (hostile.py).

After each attack the victim serves an honest peer, and its memory is bounded. All attacks run
twice: on plain hosts, and by a peer that has the secret of the fleet, over sealed packets.
"""

from __future__ import annotations

import codecs
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mounts
import pytest
from attack.net import ADDRESSES, PORT, Net, memory_bytes, secret_in
from slowness import PATIENCE, until

from mrc.linux import netns

MIB = 1 << 20
DISK_BYTES = 64 * MIB
IDLE_SECONDS = 5.0
ONCE_PORT, PERF_PORT = 4800, 4801  # beside the receiver of the other tests


class Victim:
    """An mrc in b whose stderr is a terminal."""

    def __init__(self, *words: str | Path) -> None:
        self.text = ""
        self._changed = threading.Condition()
        terminal, end = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mrc", *map(str, words)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=end,
        )  # fmt: skip
        os.close(end)
        self._reader = threading.Thread(target=self._read, args=(terminal,), daemon=True)
        self._reader.start()

    def _read(self, terminal: int) -> None:
        decode = codecs.getincrementaldecoder("utf-8")().decode
        try:
            while data := os.read(terminal, 4096):
                with self._changed:
                    self.text += decode(data)
                    self._changed.notify_all()
        except OSError:
            pass  # the other end is closed
        os.close(terminal)

    def until_said(self, words: str) -> None:
        with self._changed:
            said = self._changed.wait_for(lambda: words in self.text, PATIENCE)
        assert said and self.process.poll() is None, self.text

    def memory(self, name: str) -> int:
        return memory_bytes(self.process.pid, name)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)


@pytest.fixture(scope="module", params=["plain", pytest.param("keys", marks=pytest.mark.slow)])
def trust(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options about trust of every mrc."""
    if request.param == "plain":
        return ["--insecure"]
    return ["--secret", str(secret_in(tmp_path_factory.mktemp("fleet")))]


@contextmanager
def victim(net: Net, trust: list[str], *words: str | Path) -> Iterator[Victim]:
    with netns.inside(net.namespace("b")):
        made = Victim(*words, *trust)
    try:
        made.until_said("listening on")
        yield made
    finally:
        made.end()


@contextmanager
def hostile(net: Net, trust: list[str], attack: str, port: int = PORT) -> Iterator[str]:
    """Runs an attack from x during the body; yields the line that it prints when established."""
    program = Path(__file__).with_name("hostile.py")
    command = [sys.executable, str(program), attack, ADDRESSES["b"], str(port), *trust[1:2]]
    with (
        netns.inside(net.namespace("x")),
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            yield process.stdout.readline()
        finally:
            process.kill()


@pytest.fixture(scope="module")
def small_disk(trust: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A disk of its own for each receiver."""
    with mounts.mounted(tmp_path_factory.mktemp("small"), "-o", f"size={DISK_BYTES}") as folder:
        yield folder


@pytest.fixture(scope="module")
def receiver(hosts: Net, trust: list[str], small_disk: Path) -> Iterator[Victim]:
    words = ("recv", "--overwrite", "--idle", str(IDLE_SECONDS), "--output", small_disk)
    with victim(hosts, trust, *words) as made:
        yield made


def serves(net: Net, trust: list[str], folder: Path, inbox: Path, port: int = PORT) -> None:
    """An honest sender is served."""
    data = os.urandom(4 * MIB)
    (folder / "honest").write_bytes(data)
    net.mrc("a", "send", folder / "honest", f"{ADDRESSES['b']}:{port}", *trust).ends(0)
    assert (inbox / "honest").read_bytes() == data


def test_recv__a_peer_with_markup_offers_the_whole_disk_and_stays(
    net: Net, trust: list[str], receiver: Victim, small_disk: Path, tmp_path: Path
) -> None:
    with hostile(net, trust, "disk") as answer:
        assert answer == "accept\n"
        receiver.until_said('from "[/]"')
        free = os.statvfs(small_disk)
        assert free.f_bavail * free.f_frsize > DISK_BYTES - MIB
        serves(net, trust, tmp_path, small_disk)
        receiver.until_said(f'"[/]": no progress for {IDLE_SECONDS:g} s')
    assert receiver.process.poll() is None


@pytest.mark.default
def test_recv__names_of_programs_and_terminals(
    net: Net, trust: list[str], receiver: Victim, small_disk: Path
) -> None:
    with hostile(net, trust, "names") as answers:
        said = json.loads(answers)
    assert [answer["type"] for answer in said] == ["refuse"] * 4
    assert all("--any-name" in answer["error"] for answer in said)
    assert set(os.listdir(small_disk)) <= {"honest"}
    receiver.until_said("any-name")
    assert "\x1b]0;x" not in receiver.text and "\u202e" not in receiver.text


def test_recv__messages_that_nobody_reads(
    net: Net, trust: list[str], receiver: Victim, small_disk: Path, tmp_path: Path
) -> None:
    before, most = receiver.memory("VmRSS"), receiver.memory("VmHWM")
    with hostile(net, trust, "unread"):
        receiver.until_said("sent a frame without credit")
    assert receiver.memory("VmHWM") - most < 16 * MIB
    serves(net, trust, tmp_path, small_disk)
    assert receiver.memory("VmRSS") - before < 32 * MIB, "with the code and buffers of a transfer"


def test_recv__once_is_not_for_who_sends_nothing(
    net: Net, trust: list[str], tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    words = ("recv", "--once", "--port", str(ONCE_PORT), "--output", tmp_path / "in")
    with victim(net, trust, *words) as receiver, hostile(net, trust, "disk", ONCE_PORT) as answer:
        assert answer == "accept\n"
        serves(net, trust, tmp_path, tmp_path / "in", ONCE_PORT)
        assert receiver.process.wait(PATIENCE) == 0
    assert os.listdir(tmp_path / "in") == ["honest"]


def test_perf__plans_beyond_the_memory_for_peers(net: Net, trust: list[str]) -> None:
    """One host may use 72 MiB: one plan of 32 MiB, which requires 64 MiB."""
    client = ("perf", f"{ADDRESSES['b']}:{PERF_PORT}", "-n", "1M")
    server_words = ("perf", "--server", "--port", str(PERF_PORT), "--max-memory", "144M")
    with victim(net, trust, *server_words) as server:
        net.mrc("a", *client, *trust).ends(0)
        before = server.memory("VmRSS")
        with hostile(net, trust, "plans", PERF_PORT) as answers:
            said = json.loads(answers)
            assert [answer["type"] for answer in said] == ["ready", "refuse", "refuse"]
            assert "no memory: 67108864 bytes are needed" in said[1]["error"]
            assert server.memory("VmRSS") - before < 80 * MIB
            net.mrc("a", *client, *trust).ends(0)
        server.until_said("[/]")
        # A session frees its memory shortly after it reports its end.
        until(lambda: server.memory("VmRSS") < before + 16 * MIB)
