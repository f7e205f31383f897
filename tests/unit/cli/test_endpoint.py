# SPDX-License-Identifier: Apache-2.0
"""Options about the endpoint, trust and consent: whom commands let in, and what they ask."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from file_commands import MRC, listening
from msgspec import to_builtins
from ports import free_port
from printed import printed
from processes import Terminal, terminal
from slowness import PATIENCE

from mrc.cli import endpoint
from mrc.cli.output import Output
from mrc.connect.identity import load
from mrc.connect.oob import Peer
from mrc.errors import ProtocolError
from mrc.transfer.cli.report import TransferReport
from mrc.transfer.cli.transfers import Consents, _question
from mrc.transfer.messages import Announced, ConsentQuestion, TransferMessage
from mrc.transfer.session import TAKES_ASKING, Offered, TransferError, agreement


def mrc(*words: object, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs mrc, without a terminal, to its end."""
    done = subprocess.run(
        [*MRC, *map(str, words)], capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, env={**os.environ, **environment}, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


@pytest.fixture
def free_udp_port() -> int:
    return free_port(socket.SOCK_DGRAM)


def test_send__over_the_interface_and_udp_port_that_were_given(
    tmp_path: Path, free_udp_port: int
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 5000)
    inbox = tmp_path / "new" / "inbox"
    options = ("--output", inbox, "--udp-port", free_udp_port, "--bind", "127.0.0.1")
    with listening("recv", *options) as (_, said, host):
        assert f"made the folder {inbox}" in said
        assert f"UDP port {free_udp_port}" in said
        sent = printed("send", mrc("send", "--json", "-B", "127.0.0.1", file, host).stdout)
        paths = printed("paths", mrc("paths", "--json", "--interface", "lo", host).stdout)
        mrc("send", "-B", "lo", f"--udp-port={free_udp_port}", file, host, code=1)
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("::1", int(host.rpartition(":")[2])))
    assert (inbox / "file").read_bytes() == file.read_bytes()
    assert [plane["plane"] for plane in sent["planes"]] == [1]
    assert {ev["destination"] for ev in paths["evs"]} == {"127.0.0.1"}


def test_udp_port__that_is_taken(free_udp_port: int) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.bind(("::", free_udp_port))
        done = mrc("paths", "-B", "lo", "--udp-port", free_udp_port, "127.0.0.1", code=1)
    assert f"UDP port {free_udp_port} is in use: choose another" in done.stderr


@pytest.mark.parametrize(
    "command", [["send", "/dev/null", "-B"], ["paths", "-B"], ["perf", "-B"], ["perf", "--bind"]]
)
def test_interface__that_does_not_exist(command: list[str], tmp_path: Path) -> None:
    """As in iperf3, perf --bind names one; `mrc recv --bind` names an address."""
    (tmp_path / "f").touch()
    words = [str(tmp_path / "f") if word == "/dev/null" else word for word in command]
    done = mrc(*words, "nosuch0", "127.0.0.1", code=1)
    assert "no interface nosuch0; this host has lo" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_interface__with_a_weight_that_is_none() -> None:
    done = mrc("paths", "-B", "lo:1", "127.0.0.1", code=1)
    assert done.stderr.startswith("mrc paths: interfaces: 'lo:1' is no name; with a weight it is")
    assert len(done.stderr.splitlines()) == 1


def test_bind__to_an_address_of_another_host(tmp_path: Path) -> None:
    done = mrc("recv", "--output", tmp_path, "--bind", "192.0.2.1", "--port", "0", code=1)
    assert "cannot listen on 192.0.2.1: it is not an address of this host" in done.stderr


# ---- Questions at a terminal ---------------------------------------------------------------------


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


def fingerprint_of(path: Path) -> str:
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
    key = fingerprint_of(home / "config" / "mrc" / "identity.pem")
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
        who = re.escape(fingerprint_of(home / "config" / "mrc" / "identity.pem"))
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
    key = fingerprint_of(home / "config" / "mrc" / "identity.pem")
    allowed.write_text(f"{fingerprint_of(home / 'fleet.pem')}  # no end of line")
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
                fingerprint_of(home / "config" / "mrc" / "identity.pem"),
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


def test_recv__is_interrupted_instead_of_an_answer(home: Path, tty: Terminal) -> None:
    with asking(tty, home) as (receiver, where), sending(home, where) as sender:
        tty.until(QUESTION)
        tty.press("\x03")  # Ctrl-C
        assert receiver.wait(PATIENCE) == 130
        assert sender.wait(PATIENCE) != 0
    assert list((home / "inbox").iterdir()) == []


def test_send__asks_about_an_unknown_host(home: Path, tty: Terminal) -> None:
    own, known = home / "config" / "mrc" / "identity.pem", home / "config" / "mrc" / "known_hosts"
    first, second = home / "first.pem", home / "second.pem"
    recv = ("recv", "--allow", fingerprint_of(own), "--output", home / "inbox", "--identity")
    with listening(*recv, first) as (_, _, where):
        send = (*MRC, "send", home / "disk.img", where, "--identity", own)
        with tty.running(*send) as sender:
            tty.until(f"127.0.0.1 is {fingerprint_of(first)}; trust it? [y/N] ")
            tty.press("n\n")
            tty.until("127.0.0.1 was not accepted")
            assert sender.wait(PATIENCE) == 3
        assert not known.exists()
        with tty.running(*send) as sender:
            tty.until("trust it? [y/N] ")
            tty.press("y\n")
            assert sender.wait(PATIENCE) == 0
        assert known.read_text() == f"127.0.0.1 {fingerprint_of(first)}\n"
        with tty.running(*send) as sender:
            assert sender.wait(PATIENCE) == 0
            assert "trust it" not in tty.rest()
    with (
        listening(*recv, second) as (_, _, where),
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


# ---- Trust ---------------------------------------------------------------------------------------


FINGERPRINT = re.compile(r"mrc:SHA256:[A-Za-z0-9+/]{43}")


@contextmanager
def with_code(*words: object) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A command with --code: its process, where it listens, and the code."""
    with listening(*words, "--code") as (process, said, where):
        code = re.search(r"one-time code: (\S+)", said)
        assert code is not None
        yield process, where, code[1]


def receiving_once(
    inbox: Path, *options: str, **environment: str
) -> AbstractContextManager[tuple[subprocess.Popen[str], str, str]]:
    env = {**os.environ, **environment}
    return listening("recv", "--once", "--output", inbox, *options, env=env)


@pytest.fixture
def file(home: Path) -> Path:
    return home / "disk.img"


def fingerprint(**environment: Any) -> str:
    found = FINGERPRINT.fullmatch(mrc("key", **environment).stdout.strip())
    assert found is not None
    return found[0]


def test_key__is_made_once(home: Path) -> None:
    key = printed("key", mrc("key", "--json").stdout)
    assert key["fingerprint"] == fingerprint()
    path = home / "config" / "mrc" / "identity.pem"
    assert key["path"] == str(path) and stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    assert f"chmod 600 {path}" in mrc("key", code=1).stderr


def test_key__secret(home: Path) -> None:
    path = home / "fleet"
    mrc("key", "--secret", path)
    assert len(path.read_bytes()) == 32 and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "exists" in mrc("key", "--secret", path, code=1).stderr


def test_recv__nobody_may_send_without_a_word(home: Path) -> None:
    said = mrc("recv", "--output", home, code=2).stderr
    assert "--code" in said and "--insecure" in said


@pytest.mark.slow
def test_perf__without_a_terminal_for_processes_of_this_host(home: Path) -> None:
    """As under nohup and systemd."""
    with listening("perf", "--server", "--one-off") as (server, said, where):
        assert "only processes of this user on this host may connect" in said
        assert "--code" in said.splitlines()[0]
        other = mrc("perf", where, "--identity", home / "x.pem", code=3)
        assert f"mrc perf {where} --code" in other.stderr
        mrc("perf", where, "-n", "1M")
        assert server.wait(PATIENCE) == 0


@pytest.mark.parametrize("words", [
    ["a.bin", "h1", "--code", "maple-rocket-cider"],
    ["--code", "maple", "rocket", "cider", "a.bin", "h1"],
    ["--code=maple-rocket-cider", "a.bin", "h1"],
])  # fmt: skip
def test_code__takes_no_words(home: Path, words: list[str]) -> None:
    said = mrc("send", *words, code=2).stderr
    assert "--code takes no words: it asks for them" in said and "maple" not in said


def test_send__with_a_code(home: Path, file: Path) -> None:
    with with_code("recv", "--once", "--output", home / "inbox") as (_, where, code):
        mrc("send", file, where, "--code", MRC_CODE=code.replace("-", " "))
    assert (home / "inbox" / "disk.img").read_bytes() == file.read_bytes()


def test_recv__ends_after_the_one_peer_of_its_code(home: Path, file: Path) -> None:
    """Nobody else could connect."""
    with with_code("recv", "--output", home / "inbox") as (receiver, where, code):
        mrc("send", file, where, "--code", MRC_CODE=code)
        assert receiver.wait(PATIENCE) == 0


def test_recv__the_one_peer_of_its_code_sends_nothing(home: Path) -> None:
    with with_code("recv", "--output", home / "inbox") as (receiver, where, code):
        mrc("paths", where, "--code", MRC_CODE=code)
        assert receiver.wait(PATIENCE) == 1
        assert receiver.stderr is not None
        assert "mrc recv --code prints a new one" in receiver.stderr.read()


def test_perf__its_server_ends_after_the_one_peer_of_its_code(home: Path) -> None:
    with with_code("perf", "--server") as (server, where, code):
        mrc("perf", where, "-n", "1", "--code", MRC_CODE=code)
        assert server.wait(PATIENCE) == 0


def test_send__with_a_wrong_code(home: Path, file: Path) -> None:
    wrong = "maple-rocket-cider"
    with with_code("recv", "--output", home) as (receiver, where, code):
        assert code != wrong  # it is always new
        send = ("send", file, where, "--code")
        assert "the code is wrong" in mrc(*send, code=3, MRC_CODE=wrong).stderr
        assert receiver.wait(PATIENCE) == 1 and receiver.stderr is not None
        assert "mrc recv: the code is wrong, and was good for one guess" in receiver.stderr.read()
    mrc(*send, code=2, MRC_CODE="maple rocket")
    assert "set $MRC_CODE" in mrc(*send, code=2).stderr


@pytest.mark.more
def test_send__keys_that_know_each_other(home: Path, file: Path) -> None:
    receivers = {"MRC_IDENTITY": str(home / "b.pem")}
    ours, theirs = fingerprint(), fingerprint(**receivers)
    with receiving_once(home / "inbox", "--allow", ours, **receivers) as (receiver, said, where):
        assert theirs in said
        own = home / "config/mrc/identity.pem"
        unknown = mrc("send", file, where, "--identity", own, code=3).stderr
        assert "is not known" in unknown and theirs in unknown
        send, other = ("send", file, where, "--peer", theirs), str(home / "c.pem")
        stranger = mrc(*send, code=3, MRC_IDENTITY=other).stderr
        assert "may not connect: mrc recv --allow" in stranger
        mrc(*send)
        assert receiver.wait(PATIENCE) == 0
    assert (home / "inbox" / "disk.img").read_bytes() == file.read_bytes()


@pytest.mark.more
def test_send__a_secret_file(home: Path, file: Path) -> None:
    secret, other = home / "fleet", home / "other"
    for each in (secret, other):
        mrc("key", "--secret", each)
    with receiving_once(home / "inbox", "--secret", str(secret)) as (_, _, where):
        wrong = mrc("send", file, where, "--secret", other, code=3).stderr
        assert "both hosts need the same file" in wrong
        mrc("send", file, where, "--secret", secret)
    assert not (home / "config").exists()  # no key, and no folder for it
    secret.chmod(0o644)
    assert "chmod 600" in mrc("send", file, where, "--secret", secret, code=2).stderr


# ---- Consent: what a receiver does with a sender that its user has to accept ---------------------


A, B = (f"mrc:SHA256:{letter * 43}" for letter in "AB")


def sender(identity: str, *, name: str = "h0", **private: object) -> Any:
    """A session with a sender."""
    said: list[TransferMessage] = []

    async def say(message: TransferMessage) -> None:
        said.append(message)

    peer = Peer(host=name, name=name, address="10.0.0.1", identity=identity, private=private)
    qp = SimpleNamespace(peer=peer, until_closed=asyncio.Event().wait)
    return SimpleNamespace(qp=qp, said=said, say=say, say_last=say)


Consent = Callable[..., Consents]


async def get(asks: Consents, session: Any) -> Announced | None:
    """What a user agrees to; None: the sender is trusted."""
    return (await agreement(session, asks, 10.0))[0]


@pytest.fixture
def questions() -> list[str]:
    """What the user was asked."""
    return []


@pytest.fixture
def consent(questions: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Consent:
    """A receiver whose user gives these answers."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def made(*answers: str) -> Consents:
        left = list(answers)

        async def ask(question: str) -> str:
            questions.append(question)
            await asyncio.sleep(0)
            return left.pop(0)

        monkeypatch.setattr(endpoint, "ask", ask)
        return Consents(TransferReport(Output("mrc recv", as_json=False, quiet=True), "receiver"))

    return made


async def test_get__announces_the_question_to_senders_that_know_the_message(
    consent: Consent,
) -> None:
    asks = consent("y", "y")
    takes: dict[str, Any] = {TAKES_ASKING: True}
    new, old = sender(A, **takes), sender(B)
    await get(asks, new)
    await get(asks, old)
    assert (new.said, old.said) == ([ConsentQuestion()], [])


async def test_get__two_transfers_of_one_key_at_once_are_one_question(
    questions: list[str], consent: Consent
) -> None:
    await asyncio.gather(*map(partial(get, consent("y")), [sender(A), sender(A)]))
    assert len(questions) == 1


async def test_get__a_no_is_for_one_transfer(questions: list[str], consent: Consent) -> None:
    asks = consent("n", "yes")
    with pytest.raises(TransferError, match="were not accepted"):
        await get(asks, sender(A))
    await get(asks, sender(A))
    assert len(questions) == 2


@pytest.mark.parametrize("identity", ["", "code", "secret"])
async def test_get__without_a_key_nothing_is_remembered(
    questions: list[str], consent: Consent, tmp_path: Path, identity: str
) -> None:
    """Neither a name nor an address carries consent."""
    asks = consent("y", "always")
    await get(asks, sender(identity))
    with pytest.raises(TransferError):
        await get(asks, sender(identity))
    assert len(questions) == 2 and "always" not in "".join(questions)
    assert questions[0].startswith(f"{identity or 'no key'} at ")
    assert not (tmp_path / "mrc" / "allowed").exists()


async def test_get__always_where_the_file_cannot_be_written(
    questions: list[str], consent: Consent, tmp_path: Path
) -> None:
    (tmp_path / "mrc").write_text("no folder")
    asks = consent("always")
    for _ in range(2):
        await get(asks, sender(A))
    assert len(questions) == 1


async def test_get__what_the_question_shows_is_agreed_to(consent: Consent) -> None:
    announced, asks = Announced(bytes=5, files=1, names=("a",)), consent("y")
    for agreed in (announced, None):  # the second time its key is trusted
        assert await get(asks, sender(A, **to_builtins(announced))) == agreed


async def test_get__one_open_question_about_an_address(
    questions: list[str], consent: Consent
) -> None:
    """Many keys are nobody's many questions."""
    asks = consent("n", "y")
    senders = [sender(A), sender(B), sender("")]
    ended = await asyncio.gather(*map(partial(get, asks), senders), return_exceptions=True)
    assert len(questions) == 1
    assert ["a question is open" in str(error) for error in ended] == [False, True, True]
    assert "its user is asked about another transfer" in str(senders[1].said[-1])
    await get(asks, senders[1])
    assert len(questions) == 2


def question(announced: Announced, name: str = "h0") -> str:
    return _question(Offered("10.0.0.1", name, A, announced))


def test_question__who_it_is_comes_first() -> None:
    first = f'{A} at 10.0.0.1, called "h0", offers '
    one = Announced(bytes=1000, files=1, names=("a.bin",))
    assert question(one) == f'{first}a file, 1000 B: "a.bin": accept? [y/N/always] '
    many = Announced(files=9, folders=2, names=("a", "b", "c", "d"), more=3)
    shown = f'{first}9 files and 2 folders, of unknown size: "a", "b", "c" and 4 more: accept? '
    assert question(many).startswith(shown)
    assert question(Announced()).startswith(f"{first}files, of unknown size: accept? ")


@pytest.mark.parametrize("claimed", [
    "h0: accept? [y/N] y" + "x" * 300, 'h0", offers a file: accept? [y/N] ', "a\r\x1b[2Kh0\n",
])  # fmt: skip
def test_question__a_name_forms_no_prompt(claimed: str) -> None:
    asked = question(Announced(bytes=1, files=1, names=(claimed,)), claimed)
    assert asked.startswith(f'{A} at 10.0.0.1, called "') and asked.count('"') == 4
    assert asked.isprintable() and len(asked) < 250


async def test_get__a_transfer_that_cannot_be_shown(consent: Consent) -> None:
    asks = consent()
    for wrong in ({"files": -1}, {"names": "abc"}, {"names": ["a"] * 17}, {"bytes": "much"}):
        with pytest.raises(ProtocolError, match="announces no proper transfer"):
            await get(asks, sender(A, **wrong))


async def test_get__the_wait_for_another_question_counts(
    consent: Consent, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks, seconds = consent("y"), 0.05
    ask = endpoint.ask

    async def slow(question: str) -> str:
        await asyncio.sleep(seconds)
        return await ask(question)

    monkeypatch.setattr(endpoint, "ask", slow)
    both = (agreement(sender(A), asks, 10.0) for _ in range(2))
    for _, waited in await asyncio.gather(*both):
        assert waited >= seconds
