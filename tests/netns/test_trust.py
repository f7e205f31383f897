# SPDX-License-Identifier: Apache-2.0
"""Two hosts to which nothing is exempt, each with a user at a terminal who has set nothing up.

a  x ------ y  b        10.0.1.1 and 10.0.1.2
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from netns.conftest import fresh_name, needs_real_root
from netns.plain import address, join, namespaces, until_running
from processes import Terminal, terminal
from slowness import PATIENCE

from mrc.connect.oob import encode_frame
from mrc.connect.tls import TLS

pytestmark = pytest.mark.netns
B = "10.0.1.2"


class Host:
    """A host with a user at its terminal."""

    def __init__(self, namespace: str, tty: Terminal, home: Path) -> None:
        self.namespace, self.tty, self.home = namespace, tty, home

    @contextmanager
    def running(self, *words: str | Path) -> Iterator[subprocess.Popen[Any]]:
        """Runs mrc at the terminal."""
        command = ("ip", "netns", "exec", self.namespace, sys.executable, "-m", "mrc", *words)
        with self.tty.running(*command, XDG_CONFIG_HOME=str(self.home)) as process:
            yield process

    def unattended(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs mrc without a terminal."""
        command = ["ip", "netns", "exec", self.namespace, sys.executable, "-m", "mrc", *words]
        environment = {**os.environ, "XDG_CONFIG_HOME": str(self.home)}
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            env=environment, timeout=PATIENCE,
        )  # fmt: skip

    def ends(self, code: int, *words: str | Path) -> str:
        """Runs mrc at the terminal to its end. Returns what it prints."""
        self.tty.rest()
        before = len(self.tty.all)
        with self.running(*words) as process:
            assert process.wait(PATIENCE) == code, self.tty.rest()
        self.tty.rest()
        return self.tty.all[before:]


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Host, Host]]:
    monkeypatch.delenv("MRC_INSECURE")
    monkeypatch.delenv("MRC_CONFIG", raising=False)
    a, b = f"mrc-{fresh_name()}", f"mrc-{fresh_name()}"
    with namespaces(a, b), terminal() as one, terminal() as other:
        join(a, "x", b, "y")
        address(a, "x", "10.0.1.1/24")
        address(b, "y", f"{B}/24")
        until_running(a, "x")
        until_running(b, "y")
        yield Host(a, one, tmp_path / "a"), Host(b, other, tmp_path / "b")


def test_perf__each_side_says_what_to_run(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    with b.running("perf", "--server", "--one-off") as server:
        b.tty.until("one-time code: ")
        code = b.tty.until("\r\n")
        b.tty.until("on the other host run: mrc perf ")
        b.tty.until("listening on")
        wrong = a.unattended("perf", B)
        assert wrong.returncode == 3 and "takes a one-time code, not a key" in wrong.stderr
        assert wrong.stderr.endswith(f"into: mrc perf {B} --code\n")
        b.tty.until("10.0.1.1 refused this host: ")
        assert f"mrc perf {B} --code" in b.tty.until("\r\n")
        with a.running("perf", B, "--code", "-n", "1M") as client:
            a.tty.until("code of the other host: ")
            a.tty.press(f"{code}\n")
            assert client.wait(PATIENCE) == 0
        assert server.wait(PATIENCE) == 0


@pytest.mark.slow
def test_perf__asks_for_the_code(hosts: tuple[Host, Host]) -> None:
    """The commands of the README: who names no way is asked for the code, unseen, and only for it.
    Nothing else is asked, since a right code proves both sides.
    """
    a, b = hosts
    with b.running("perf", "--server", "--one-off") as server:
        b.tty.until("one-time code: ")
        code = b.tty.until("\r\n")
        b.tty.until("listening on")
        with a.running("perf", B, "-t", "0.1", "-P", "2") as client:
            a.tty.until(f"one-time code that {B} shows: ")
            assert not a.tty.echoes()
            a.tty.press(f"{code}\n")
            assert client.wait(PATIENCE) == 0
        b.tty.until("10.0.1.1 refused this host: its user is asked for the one-time code")
        assert server.wait(PATIENCE) == 0
    a.tty.rest()
    assert a.tty.echoes() and code not in a.tty.all and "[y/N]" not in a.tty.all


@pytest.mark.default
def test_recv__each_user_is_asked_once(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    a, b = hosts
    files = [tmp_path / name for name in ("first", "second")]
    for file in files:
        file.write_bytes(os.urandom(1 << 20))
    with b.running("recv", "--output", tmp_path / "inbox"):
        b.tty.until("listening on")
        with a.running("send", files[0], B) as sender:
            a.tty.until("trust it? [y/N] ")
            a.tty.press("y\n")
            b.tty.until("10.0.1.1 refused this host: its user does not know this host's key")
            b.tty.until("accept? [y/N/always] ")
            a.tty.until(f"waiting for {B} to accept")
            b.tty.press("y\n")
            assert sender.wait(PATIENCE) == 0
        assert "[y/N" not in a.ends(0, "send", files[1], B)
        b.tty.until("second")
    for file in files:
        assert (tmp_path / "inbox" / file.name).read_bytes() == file.read_bytes()


def test_top__asks_about_the_host_and_is_refused_with_its_name(hosts: tuple[Host, Host]) -> None:
    a, b = hosts
    key = a.ends(0, "key").strip()
    with b.running("perf", "--server", "--top", "--allow", key):
        b.tty.until("listening on")
        with a.running("top", B, "--once", "-i", "0.1") as viewer:
            a.tty.until("trust it? [y/N] ")
            a.tty.press("y\n")
            assert viewer.wait(PATIENCE) == 0
        stranger = a.ends(3, "top", B, "--once", "--identity", a.home / "other.pem")
        assert f"{B}: TCP port 4791: the peer refused: mrc:SHA256:" in stranger
        assert "perf --server --allow mrc:SHA256:" in stranger
        b.tty.until("refused 10.0.1.1: mrc:SHA256:")


@pytest.fixture
def liar(hosts: tuple[Host, Host]) -> Iterator[subprocess.Popen[str]]:
    """Names of a lead to a itself at the first question, then to b."""
    a, b = hosts
    resolving = Path("/etc/netns") / a.namespace
    program = Path(__file__).with_name("liar.py")
    command = ["ip", "netns", "exec", b.namespace, sys.executable, str(program), B, "7000"]
    try:
        resolving.mkdir(parents=True)
        (resolving / "resolv.conf").write_text(f"nameserver {B}\n")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            yield process
            process.kill()
    finally:
        shutil.rmtree(resolving)


@needs_real_root
@pytest.mark.parametrize(
    "words",
    [
        "send FILE",
        "paths",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("top", "perf")),
    ],
)
def test_resolver__that_changes_its_answer(
    hosts: tuple[Host, Host], liar: subprocess.Popen[str], words: str, tmp_path: Path
) -> None:
    """Nothing but the wish for TLS reaches a host because a name once led to loopback."""
    a, _ = hosts
    (tmp_path / "payroll").write_text("secret")
    command = [str(tmp_path / "payroll") if word == "FILE" else word for word in words.split()]
    for question in ("own", "others"):  # of the resolver, in turn
        ended = a.unattended(*command, "payroll.example:7000")
        assert ended.returncode != 0 and "Traceback" not in ended.stderr, (question, ended)
    liar.kill()
    said = [bytes.fromhex(line) for line in liar.communicate()[0].split()]
    assert said and set(said) == {encode_frame({"type": TLS})}
