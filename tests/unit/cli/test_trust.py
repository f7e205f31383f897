# SPDX-License-Identifier: Apache-2.0
"""Who may send to whom, through the commands, on loopback."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from file_commands import MRC
from printed import printed
from slowness import PATIENCE

FINGERPRINT = re.compile(r"mrc:SHA256:[A-Za-z0-9+/]{43}")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without keys, to whom nothing is exempt."""
    monkeypatch.delenv("MRC_INSECURE")
    monkeypatch.delenv("MRC_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def ended(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MRC, *map(str, command)], capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, env={**os.environ, **environment}, timeout=PATIENCE,
    )  # fmt: skip


@contextmanager
def listening(*words: object) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A command with --code: its process, its port, and the code."""
    with subprocess.Popen(
        [*MRC, *map(str, words), "--code"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=-1, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        code = port = None
        while not port:
            line = process.stderr.readline()
            assert line
            code = code or re.search(r"one-time code: (\S+)", line)
            port = re.search(r"TCP port (\d+)", line)
        assert code is not None
        try:
            yield process, f"127.0.0.1:{port[1]}", code[1]
        finally:
            process.terminate()


@contextmanager
def receiving(inbox: Path, *options: str, **environment: str) -> Iterator[tuple[list[str], str]]:
    """`mrc recv --once`: the lines that it prints until the end, and where it listens."""
    command = [*MRC, "recv", "--once", "--port", "0", "--output", str(inbox), *options]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=-1, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, **environment},
    ) as receiver:  # fmt: skip
        assert receiver.stdout is not None
        lines: list[str] = []
        while not (lines and "TCP port" in lines[-1]):
            lines.append(receiver.stdout.readline())
            assert lines[-1], lines
        port = re.search(r"TCP port (\d+)", lines[-1])
        assert port is not None
        try:
            yield lines, f"127.0.0.1:{port[1]}"
        finally:
            receiver.terminate()
            lines += receiver.communicate(timeout=PATIENCE)[0].splitlines()


@pytest.fixture
def file(home: Path) -> Path:
    (home / "disk.img").write_bytes(os.urandom(1 << 20))
    return home / "disk.img"


def fingerprint(**environment: str) -> str:
    found = FINGERPRINT.fullmatch(ended("key", **environment).stdout.strip())
    assert found is not None
    return found[0]


def test_key__is_made_once(home: Path) -> None:
    first = ended("key", "--json")
    key = printed("key", first.stdout)
    assert key["fingerprint"] == fingerprint()
    path = home / "config" / "mrc" / "identity.pem"
    assert key["path"] == str(path) and stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    wrong = ended("key")
    assert wrong.returncode == 1 and f"chmod 600 {path}" in wrong.stderr


def test_key__secret(home: Path) -> None:
    path = home / "fleet"
    assert ended("key", "--secret", path).returncode == 0
    assert len(path.read_bytes()) == 32 and stat.S_IMODE(path.stat().st_mode) == 0o600
    again = ended("key", "--secret", path)
    assert again.returncode == 1 and "exists" in again.stderr


def test_recv__nobody_may_send_without_a_word(home: Path) -> None:
    done = ended("recv", "--output", home)
    assert done.returncode == 2
    assert "--code" in done.stderr and "--insecure" in done.stderr


@pytest.mark.slow
def test_perf__without_a_terminal_for_processes_of_this_host(home: Path) -> None:
    """As under nohup and systemd."""
    command = [*MRC, "perf", "--server", "--one-off", "--port", "0"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, text=True
    ) as server:
        assert server.stderr is not None
        closed = server.stderr.readline()
        assert "only processes of this user on this host may connect" in closed
        assert "--code" in closed
        port = re.search(r"TCP port (\d+)", "".join(server.stderr.readline() for _ in range(2)))
        assert port is not None
        other = ended("perf", "127.0.0.1", "--port", port[1], "--identity", home / "x.pem")
        assert other.returncode == 3 and f"mrc perf 127.0.0.1:{port[1]} --code" in other.stderr
        done = ended("perf", "127.0.0.1", "--port", port[1], "-n", "1M")
        assert done.returncode == 0, done.stderr
        assert server.wait(PATIENCE) == 0


@pytest.mark.parametrize("words", [
    ["a.bin", "h1", "--code", "maple-rocket-cider"],
    ["--code", "maple", "rocket", "cider", "a.bin", "h1"],
    ["--code=maple-rocket-cider", "a.bin", "h1"],
])  # fmt: skip
def test_code__takes_no_words(home: Path, words: list[str]) -> None:
    done = ended("send", *words)
    assert done.returncode == 2 and "--code takes no words: it asks for them" in done.stderr
    assert "maple" not in done.stderr


def test_send__with_a_code(home: Path, file: Path) -> None:
    with receiving(home / "inbox", "--code") as (lines, where):
        code = re.search(r"one-time code: (\S+)", "".join(lines))
        assert code is not None
        sent = ended("send", file, where, "--code", MRC_CODE=code[1].replace("-", " "))
        assert sent.returncode == 0, sent.stderr
    assert (home / "inbox" / "disk.img").read_bytes() == file.read_bytes()


def test_recv__ends_after_the_one_peer_of_its_code(home: Path, file: Path) -> None:
    """Nobody else could connect."""
    with listening("recv", "--port", "0", "--output", home / "inbox") as (receiver, where, code):
        sent = ended("send", file, where, "--code", MRC_CODE=code)
        assert sent.returncode == 0, sent.stderr
        assert receiver.wait(PATIENCE) == 0


def test_recv__the_one_peer_of_its_code_sends_nothing(home: Path) -> None:
    with listening("recv", "--port", "0", "--output", home / "inbox") as (receiver, where, code):
        looked = ended("paths", where, "--code", MRC_CODE=code)
        assert looked.returncode == 0, looked.stderr
        assert receiver.wait(PATIENCE) == 1
        assert receiver.stderr is not None
        assert "mrc recv --code prints a new one" in receiver.stderr.read()


def test_perf__its_server_ends_after_the_one_peer_of_its_code(home: Path) -> None:
    with listening("perf", "--server", "-p", "0") as (server, where, code):
        test = ended("perf", where, "-n", "1", "--code", MRC_CODE=code)
        assert test.returncode == 0, test.stderr
        assert server.wait(PATIENCE) == 0


def test_send__with_a_wrong_code(home: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MRC_CODE", "maple-rocket-cider")
    with listening("recv", "--port", "0", "--output", home) as (receiver, where, code):
        assert code != "maple-rocket-cider"  # it is always new
        sent = ended("send", file, where, "--code")
        assert sent.returncode == 3 and "the code is wrong" in sent.stderr
        assert receiver.wait(PATIENCE) == 1 and receiver.stderr is not None
        assert "mrc recv: the code is wrong, and was good for one guess" in receiver.stderr.read()
    monkeypatch.delenv("MRC_CODE")
    assert ended("send", file, where, "--code", MRC_CODE="maple rocket").returncode == 2
    assert "set $MRC_CODE" in ended("send", file, where, "--code").stderr


@pytest.mark.more
def test_send__keys_that_know_each_other(home: Path, file: Path) -> None:
    receivers = {"MRC_IDENTITY": str(home / "b.pem")}
    ours, theirs = fingerprint(), fingerprint(**receivers)
    with receiving(home / "inbox", "--allow", ours, **receivers) as (lines, where):
        assert theirs in "".join(lines)
        unknown = ended("send", file, where, "--identity", home / "config/mrc/identity.pem")
        assert unknown.returncode == 3
        assert "is not known" in unknown.stderr and theirs in unknown.stderr
        stranger = ended("send", file, where, "--peer", theirs, MRC_IDENTITY=str(home / "c.pem"))
        assert stranger.returncode == 3 and "may not connect: mrc recv --allow" in stranger.stderr
        sent = ended("send", file, where, "--peer", theirs)
        assert sent.returncode == 0, sent.stderr
    assert (home / "inbox" / "disk.img").read_bytes() == file.read_bytes()


@pytest.mark.more
def test_send__a_secret_file(home: Path, file: Path) -> None:
    secret = home / "fleet"
    ended("key", "--secret", secret)
    with receiving(home / "inbox", "--secret", str(secret)) as (_, where):
        other = home / "other"
        ended("key", "--secret", other)
        wrong = ended("send", file, where, "--secret", other)
        assert wrong.returncode == 3 and "both hosts need the same file" in wrong.stderr
        assert ended("send", file, where, "--secret", secret).returncode == 0
    assert not (home / "config").exists()  # no key, and no folder for it
    secret.chmod(0o644)
    assert "chmod 600" in ended("send", file, where, "--secret", secret).stderr


@pytest.mark.slow
def test_send__insecure_and_secure_ends(home: Path, file: Path) -> None:
    with receiving(home / "inbox", "--allow", fingerprint()) as (_, where):
        plain = ended("send", file, where, "--insecure")
        assert plain.returncode == 3 and "encrypted exchanges only" in plain.stderr
    with receiving(home / "inbox", "--insecure") as (_, where):
        sealed = ended("send", file, where, "--peer", fingerprint())
        assert sealed.returncode == 3 and "--insecure" in sealed.stderr
    assert ended("send", file, "127.0.0.1:1", "--insecure", "--seal", "aead").returncode == 2
