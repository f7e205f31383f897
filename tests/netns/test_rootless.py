# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed` as an ordinary user types it, without any namespace commands.

Method: every process here runs as a user without a name or a privilege, in a mount namespace in
which every user can read Python and this checkout, wherever they are.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from printed import printed
from slowness import PATIENCE

from .conftest import has_ended, needs_real_root
from .shown import ROOT, shown_to_all

pytestmark = needs_real_root

USER = 23456


@dataclass
class User:
    home: Path
    runtime: str = ""
    """$XDG_RUNTIME_DIR"""

    def start(self, *words: str) -> subprocess.Popen[str]:
        drop = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--"]
        argv = [*shown_to_all(), *drop, sys.executable, "-m", "mrc", *words]
        env = os.environ | {
            "HOME": str(self.home), "XDG_RUNTIME_DIR": self.runtime, "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, env=env, cwd=self.home)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        with self.start(*words) as process:
            output, errors = process.communicate()
        return subprocess.CompletedProcess(words, process.returncode, output, errors)

    def keeper(self) -> int | None:
        """The process that holds the user's namespaces."""
        file = self.home / "mrc" / "keeper"
        words = file.read_text().split() if file.exists() else []
        return int(words[0]) if words else None

    def left(self) -> list[str]:
        """What mrc left outside its namespaces."""
        return sorted(path.name for path in self.home.glob("mrc*"))


@pytest.fixture
def user() -> Iterator[User]:
    """A user with an own home folder, because other users cannot enter pytest's folders."""
    with tempfile.TemporaryDirectory() as home:
        os.chown(home, USER, USER)
        user = User(Path(home), runtime=home)
        yield user
        # All processes in its namespaces end with it.
        if (keeper := user.keeper()) and not has_ended(keeper):
            os.kill(keeper, signal.SIGKILL)


@pytest.mark.slow
def test_testbed__whole_life_without_root(user: User) -> None:
    """Two test beds, one of each fabric, outlive the commands. The last `down` ends the keeper."""
    done = user.run("testbed", "exec", "--name", "one", "h0", "--", "true")
    assert done.stderr == ("mrc testbed exec: test bed one is not up: mrc testbed up --name one\n")
    assert user.left() == []
    shape = ("--planes", "1", "--t1", "1")
    assert user.run("testbed", "up", "--name", "one", *shape).returncode == 0
    done = user.run("testbed", "up", "--name", "two", *shape, "--fabric", "emulated")
    assert done.returncode == 0, done.stderr
    keeper = user.keeper()
    assert keeper is not None
    done = user.run("testbed", "exec", "--name", "one", "h0", "--", "sh", "-c", "pwd; exit 7")
    assert (done.returncode, done.stdout) == (7, f"{user.home}\n"), done.stderr
    done = user.run("testbed", "exec", "--name", "one", "t1:1.0", "--", "ip", "-6", "route")
    assert "fcbb:1:100::/48" in done.stdout, done.stderr
    done = user.run("testbed", "exec", "--name", "one", "--user", "nobody", "h0", "--", "true")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    capture = ("testbed", "capture", "h0", "a.pcap", "--seconds", "0.1", "--name", "one")
    assert user.run(*capture).returncode == 0
    assert user.run("testbed", "fail", "t1:1.0", "--rate", "10%", "--name", "two").returncode == 0
    done = user.run("testbed", "status", "--name", "two")
    assert "t1:1.0 fails: rate 10.00% of its own" in done.stdout and done.stderr == ""
    for name in ("one", "two"):
        assert user.run("testbed", "down", "--name", name).stdout == f"{name} is down\n"
    assert user.left() == []
    assert has_ended(keeper)
    assert user.run("testbed", "down", "--name", "one").stdout == "one was not up\n"
    assert user.left() == []


def test_up__has_no_interface_of_the_machine(user: User) -> None:
    done = user.run("testbed", "up", "--planes", "1", "--t1", "1", "--uplink", "eth0")
    assert done.stderr == (
        "mrc testbed up: this machine has no interface eth0; a test bed of an ordinary user has "
        "none of its interfaces: run this command as root\n"
    )
    assert done.returncode == 1 and user.left() == []


@pytest.mark.slow
def test_down__of_several_at_once_leaves_nothing(user: User) -> None:
    names = ("one", "two", "three")
    for name in names:
        up = ("testbed", "up", "--name", name, "--planes", "1", "--fabric", "emulated")
        assert user.run(*up).returncode == 0
    keeper = user.keeper()
    assert keeper is not None
    downs = [user.start("testbed", "down", "--name", name) for name in names]
    assert [down.communicate()[0] for down in downs] == [f"{name} is down\n" for name in names]
    assert has_ended(keeper)
    assert user.left() == []


@pytest.mark.slow
def test_down__without_a_runtime_folder_leaves_nothing(user: User) -> None:
    user.runtime = ""
    done = user.run("testbed", "up", "--planes", "1", "--t1", "1")
    place = Path(f"/tmp/mrc-{USER}")
    assert (done.returncode, place.exists()) == (0, True), done.stderr
    assert user.run("testbed", "down").returncode == 0
    assert not place.exists()


def test_down__while_a_command_watches(user: User) -> None:
    """The command that ends last removes what they share."""
    up = ("testbed", "up", "--planes", "1", "--fabric", "emulated")
    assert user.run(*up).returncode == 0
    keeper = user.keeper()
    assert keeper is not None
    with user.start("testbed", "capture", "h0", "a.pcap") as capture:
        assert capture.stderr is not None
        assert "capturing" in capture.stderr.readline()
        assert user.run("testbed", "down").stdout == "lab is down\n"
        capture.send_signal(signal.SIGINT)
        capture.communicate()
    assert has_ended(keeper)
    assert user.left() == []


def test_up__that_fails_leaves_nothing(user: User) -> None:
    done = user.run("testbed", "up", "--planes", "1000")
    assert (done.returncode, user.left()) == (2, []), done.stderr


def test_testbed__begins_anew_when_the_keeper_was_killed(user: User) -> None:
    up = ("testbed", "up", "--name", "one", "--planes", "1", "--fabric", "emulated")
    assert user.run(*up).returncode == 0
    keeper = user.keeper()
    assert keeper is not None
    os.kill(keeper, signal.SIGKILL)
    assert user.run(*up).stdout.startswith("one is up")
    keeper = user.keeper()
    assert keeper is not None
    os.kill(keeper, signal.SIGKILL)
    assert user.run("testbed", "down", "--name", "one").stdout == "one was not up\n"
    assert user.left() == []


@pytest.mark.default
@pytest.mark.parametrize("fabric", ["kernel", pytest.param("emulated", marks=pytest.mark.slow)])
def test_testbed__any_program_uses_the_fabric(user: User, fabric: str) -> None:
    """Names resolve without a file in /etc, and `down` ends what still runs."""
    shape = ("--planes", "2", "--t1", "1", "--fabric", fabric)
    assert user.run("testbed", "up", *shape).returncode == 0
    for name in ("h1", "h1.p2"):
        done = user.run("testbed", "exec", "h0", "--", "ping", "-c1", f"-W{PATIENCE:g}", name)
        assert (done.returncode, name in done.stdout) == (0, True), done.stderr
    with user.start("testbed", "exec", "h0", "--", "sh", "-c", "echo; exec sleep 60") as running:
        try:
            assert running.stdout is not None
            running.stdout.readline()
            done = user.run("testbed", "down", "--json")
            (ended,) = printed("testbed down", done.stdout)["ended"]
            assert (ended["node"], ended["command"], done.stderr) == ("h0", "sleep 60", "")
            assert running.wait(PATIENCE) == -signal.SIGTERM
        finally:
            running.kill()


@pytest.mark.slow
def test_top__sees_from_outside_who_is_inside(user: User) -> None:
    shape = ("--planes", "1", "--t1", "1", "--fabric", "emulated")
    assert (
        printed("top", user.run("top", "--local", "--json", "-i", "0.1").stdout)["endpoints"] == []
    )
    assert not (user.home / "mrc").exists()
    assert user.run("testbed", "up", *shape).returncode == 0
    recv = ["testbed", "exec", "h1", "--", sys.executable, "-m", "mrc", "recv"]
    recv += ["--output", str(user.home)]
    with user.start(*recv) as receiving:
        assert receiving.stderr is not None
        while "listening" not in receiving.stderr.readline():
            assert receiving.poll() is None, receiving.stderr.read()
        shown = user.run("top", "--local", "--json", "-i", "0.1")
        receiving.terminate()
        receiving.communicate()
    (endpoint,) = printed("top", shown.stdout)["endpoints"]
    assert (endpoint["host"], endpoint["program"]) == ("h1", "mrc recv"), shown.stderr


def test_view__is_reached_from_outside(user: User) -> None:
    """The test bed is in a network namespace of the user; the page is where the browser is."""
    assert user.run("testbed", "up", "--planes", "1").returncode == 0
    with user.start("testbed", "view", "--json") as viewer:
        assert viewer.stdout is not None
        url = printed("testbed view", viewer.stdout.readline())["url"]
        body = json.dumps({"do": "fail", "target": "plane:1"}).encode()
        with urlopen(Request(f"{url}change", body, {"Content-Type": "application/json"})) as done:
            assert done.status == 204
        with urlopen(f"{url}feed") as feed:
            while not feed.readline().startswith(b"event: links"):
                pass
            assert [*json.loads(feed.readline().removeprefix(b"data: "))["faults"]] == ["plane:1"]
        viewer.send_signal(signal.SIGINT)
        _, errors = viewer.communicate()
    assert (viewer.returncode, errors) == (130, "mrc testbed view: interrupted\n")
    assert user.run("testbed", "down").returncode == 0
    assert user.left() == []


def test_testbed__trusts_no_folder_of_others(user: User) -> None:
    (user.home / "mrc").mkdir()  # owned by root
    done = user.run("testbed", "up", "--name", "one")
    assert done.returncode == 1
    assert "does not belong to you alone; set XDG_RUNTIME_DIR" in done.stderr
    (user.home / "mrc" / "keeper").touch()


def test_doctor__without_root(user: User) -> None:
    done = user.run("doctor")
    assert done.returncode == 0, done.stderr
    lines = {line.split()[1]: line for line in done.stdout.splitlines() if line.strip()}
    assert lines["seg6"].startswith("ok") and lines["uSIDs"].startswith("ok")
    assert done.stdout.endswith("mrc can run here\n")
    assert done.stderr == ""
