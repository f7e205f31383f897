# SPDX-License-Identifier: Apache-2.0
"""The questions of the commands to a user at a terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from file_commands import MRC
from printed import printed
from processes import Terminal, terminal
from slowness import PATIENCE

from mrc.trust.identity import load

RECEIVED = 1 << 20


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without keys, to whom nothing is exempt."""
    monkeypatch.delenv("MRC_INSECURE")
    monkeypatch.delenv("MRC_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "disk.img").write_bytes(os.urandom(RECEIVED))
    return tmp_path


@pytest.fixture
def tty() -> Iterator[Terminal]:
    with terminal() as made:
        yield made


def fingerprint(path: Path) -> str:
    """Of the key in this file, which is made if it is not there."""
    return load(path).fingerprint


@contextmanager
def asking(
    tty: Terminal, home: Path, *options: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`mrc recv` at a terminal, which asks about each sender; and where it listens."""
    words = ("recv", "--port", "0", "--output", home / "inbox", *options)
    with tty.running(*MRC, *words) as receiver:
        tty.until("listening on TCP port ")
        yield receiver, f"127.0.0.1:{tty.until(',')}"


@contextmanager
def sending(home: Path, where: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    """`mrc send`, whose key the receiver does not know."""
    key = fingerprint(home / "config" / "mrc" / "identity.pem")
    command = [*MRC, "send", *(more or [str(home / "disk.img")]), where, "--peer", key]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as sender:
        try:
            yield sender
        finally:
            sender.kill()


QUESTION = ": accept? [y/N/always] "


def test_recv__asks_and_gets_a_yes(home: Path, tty: Terminal) -> None:
    with asking(tty, home, "--once") as (receiver, where), sending(home, where) as sender:
        asked = tty.until(QUESTION)
        who = re.escape(fingerprint(home / "config" / "mrc" / "identity.pem"))
        assert re.search(
            rf"{who} at 127\.0\.0\.1, called \"\S+\", offers a file, 1 MiB: \"disk\.img\"$", asked
        )
        tty.press("y\n")
        assert sender.wait(PATIENCE) == 0
        assert receiver.wait(PATIENCE) == 0
    assert (home / "inbox" / "disk.img").read_bytes() == (home / "disk.img").read_bytes()


@pytest.mark.more
def test_recv__asks_and_gets_a_no(home: Path, tty: Terminal) -> None:
    """An answer that was typed before the question does not count; the next sender is asked for."""
    with asking(tty, home) as (receiver, where):
        with sending(home, where) as sender:
            tty.until(QUESTION)
            tty.press("n\n")
            assert sender.wait(PATIENCE) == 1
            assert sender.stderr is not None
            assert "the user did not accept the files" in sender.stderr.read()
        tty.until("the files were not accepted")
        tty.press("y\n")
        with sending(home, where) as sender:
            tty.until(QUESTION)
            tty.press("\n")
            assert sender.wait(PATIENCE) == 1
        assert receiver.poll() is None
    assert list((home / "inbox").iterdir()) == []


@pytest.mark.more
def test_recv__asks_once_about_a_key(home: Path, tty: Terminal) -> None:
    """A yes counts for this key in this run, and for no other key at the same address."""
    (home / "second").write_bytes(b"2")
    (home / "third").write_bytes(b"3")
    with asking(tty, home) as (_, where):
        with sending(home, where) as sender:
            tty.until(QUESTION)
            tty.press("y\n")
            assert sender.wait(PATIENCE) == 0
        tty.until("no further question about mrc:SHA256:")
        with sending(home, where, str(home / "second")) as sender:
            assert sender.wait(PATIENCE) == 0
        assert QUESTION not in tty.rest()
        third = (str(home / "third"), "--identity", str(home / "other.pem"))
        with sending(home, where, *third) as sender:
            tty.until(QUESTION)
            tty.press("n\n")
            assert sender.wait(PATIENCE) == 1
    assert (home / "inbox" / "second").exists() and not (home / "inbox" / "third").exists()
    assert not (home / "config" / "mrc" / "allowed").exists()


@pytest.mark.more
def test_recv__always(home: Path, tty: Terminal) -> None:
    """The answer is in the file of allowed peers. Another key is asked about there too."""
    allowed = home / "config" / "mrc" / "allowed"
    key = fingerprint(home / "config" / "mrc" / "identity.pem")
    allowed.write_text(f"{fingerprint(home / 'fleet.pem')}  # no end of line")
    with asking(tty, home, "--once") as (receiver, where), sending(home, where) as sender:
        tty.until(QUESTION)
        tty.press("always\n")
        tty.until(f"{allowed} has {key} now")
        assert sender.wait(PATIENCE) == receiver.wait(PATIENCE) == 0
    assert [line.split()[0] for line in allowed.read_text().splitlines()][1] == key
    with asking(tty, home, "--overwrite") as (receiver, where):
        with sending(home, where) as sender:
            assert sender.wait(PATIENCE) == 0
        assert QUESTION not in tty.rest()
        more = (str(home / "disk.img"), "--identity", str(home / "other.pem"))
        with sending(home, where, *more) as sender:
            tty.until(QUESTION)
            tty.press("no\n")
            assert sender.wait(PATIENCE) == 1


@pytest.mark.slow
def test_recv__asks_about_a_process_that_proves_no_key_each_time(home: Path, tty: Terminal) -> None:
    command = [*MRC, "send", str(home / "disk.img")]
    with asking(tty, home, "--overwrite") as (_, where):
        for _ in range(2):
            with subprocess.Popen([*command, where], stderr=-1) as sender:
                assert "no key at 127.0.0.1, called " in tty.until(": accept? [y/N] ")
                tty.press("y\n")
                assert sender.wait(PATIENCE) == 0


@pytest.mark.slow
def test_send__waits_for_an_answer(home: Path, tty: Terminal) -> None:
    """The wait is shown, and is no part of the transfer's time."""
    seconds = 2.0
    with asking(tty, home, "--json") as (_, where):
        with sending(home, where, str(home / "disk.img"), "--json") as sender:
            tty.until(QUESTION)
            assert sender.stderr is not None and sender.stdout is not None
            assert sender.stderr.readline() == "mrc send: waiting for 127.0.0.1 to accept\n"
            time.sleep(seconds)  # what is measured
            tty.press("y\n")
            sent = printed("send", sender.stdout.read())
            assert sender.wait(PATIENCE) == 0
        tty.until('"role": "receiver"')
        tty.until('"waited_seconds": ')
        assert float(tty.until(",")) >= seconds
        assert sent["waited_seconds"] >= seconds > sent["seconds"]
        assert sent["goodput_bits_per_second"] == pytest.approx(8 * RECEIVED / sent["seconds"])
        with (
            terminal() as other,
            other.running(
                *MRC, "send", home / "disk.img", where, "--identity", home / "other.pem", "--peer",
                fingerprint(home / "config" / "mrc" / "identity.pem"),
            ),
        ):  # fmt: skip
            tty.until(QUESTION)
            other.until("waiting for 127.0.0.1 to accept")
            assert "bit/s" not in other.all


@pytest.mark.slow
def test_recv__asks_and_the_sender_goes_away(home: Path, tty: Terminal) -> None:
    """One question at a time; the next one comes when the sender of the first has gone."""
    (home / "second").write_bytes(b"2")
    with asking(tty, home) as (_, where), sending(home, where) as first:
        tty.until(QUESTION)
        with sending(home, where, str(home / "second"), str(home / "disk.img")) as second:
            first.send_signal(signal.SIGINT)
            assert first.wait(PATIENCE) == 130
            tty.until("offers 2 files")
            tty.until(QUESTION)
            tty.press("yes\n")
            assert second.wait(PATIENCE) == 0
            tty.rest()
            assert "the sender did not wait for an answer" in tty.all
    assert (home / "inbox" / "second").read_bytes() == b"2"


@pytest.mark.slow
def test_recv__is_interrupted_instead_of_an_answer(home: Path, tty: Terminal) -> None:
    with asking(tty, home) as (receiver, where), sending(home, where) as sender:
        tty.until(QUESTION)
        tty.press("\x03")  # Ctrl-C
        assert receiver.wait(PATIENCE) == 130
        assert sender.wait(PATIENCE) != 0
    assert list((home / "inbox").iterdir()) == []


@contextmanager
def receiving(home: Path, key: Path) -> Iterator[str]:
    """`mrc recv` with this key, which takes files of this user; where it listens."""
    allowed = fingerprint(home / "config" / "mrc" / "identity.pem")
    words = ["--identity", str(key), "--allow", allowed, "--output", str(home / "inbox")]
    command = [*MRC, "recv", "--port", "0", *words]
    with subprocess.Popen(command, stderr=-1, text=True) as receiver:
        assert receiver.stderr is not None
        lines = iter(receiver.stderr.readline, "")
        port = next(found[1] for line in lines if (found := re.search(r"TCP port (\d+)", line)))
        try:
            yield f"127.0.0.1:{port}"
        finally:
            receiver.kill()


def test_send__asks_about_an_unknown_host(home: Path, tty: Terminal) -> None:
    own, known = home / "config" / "mrc" / "identity.pem", home / "config" / "mrc" / "known_hosts"
    first, second = home / "first.pem", home / "second.pem"
    with receiving(home, first) as where:
        send = (*MRC, "send", home / "disk.img", where, "--identity", own)
        with tty.running(*send) as sender:
            tty.until(f"127.0.0.1 is {fingerprint(first)}; trust it? [y/N] ")
            tty.press("n\n")
            tty.until("127.0.0.1 was not accepted")
            assert sender.wait(PATIENCE) == 3
        assert not known.exists()
        with tty.running(*send) as sender:
            tty.until("trust it? [y/N] ")
            tty.press("y\n")
            assert sender.wait(PATIENCE) == 0
        assert known.read_text() == f"127.0.0.1 {fingerprint(first)}\n"
        with tty.running(*send) as sender:
            assert sender.wait(PATIENCE) == 0
            assert "trust it" not in tty.rest()
    with (
        receiving(home, second) as where,
        tty.running(*MRC, "send", home / "disk.img", where, "--identity", own) as sender,
    ):
        changed = tty.until(f"remove its line from {known}")
        assert "127.0.0.1 shows another key than before" in changed
        assert sender.wait(PATIENCE) == 3


def test_send__asks_for_the_code_without_showing_it(home: Path, tty: Terminal) -> None:
    with (
        terminal() as other,
        other.running(*MRC, "recv", "--once", "--port", "0", "--code", "--output", home / "in"),
    ):
        other.until("one-time code: ")
        code = other.until("\r\n")
        other.until("listening on TCP port ")
        where = f"127.0.0.1:{other.until(',')}"
        with tty.running(*MRC, "send", home / "disk.img", where, "--code") as sender:
            tty.until("code of the other host: ")
            assert not tty.echoes()
            tty.press(f"{code}\n")
            assert sender.wait(PATIENCE) == 0
        assert code not in tty.all + tty.rest()
        assert tty.echoes()
    assert (home / "in" / "disk.img").exists()


def test_send__is_interrupted_instead_of_the_code(home: Path, tty: Terminal) -> None:
    with tty.running(*MRC, "send", home / "disk.img", "127.0.0.1", "--code") as sender:
        tty.until("code of the other host: ")
        tty.interrupt(sender)
        assert sender.wait(PATIENCE) == 130
    assert "Traceback" not in tty.all + tty.rest() and tty.echoes()
