# SPDX-License-Identifier: Apache-2.0
"""A test bed over two machines that reach each other by a real ssh, each with an sshd of its own.

h0 -- t0:P.0 --+-- t1:P.0        host-a
               |
h1 -- t0:P.1 --+-- t1:P.1        host-b        P = 1, 2
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from netns.test_machines import SMALL, TRAFFIC, capture_pings, command_lines, is_clean, ran
from slowness import PATIENCE, until

from .conftest import needs_real_root
from .machines import MRC, Machine, hosts_file, machines, status

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SSHD is None, reason="needs sshd: apt-get install openssh-server"),
    needs_real_root,
]
PORT = 2222
NAMES = ("host-a", "host-b")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    """Their own configuration says the port, the user and the keys, as one in /root/.ssh would."""
    folder = tmp_path / "ssh"
    folder.mkdir()
    for key in ("user", "host"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(make, check=True)
    host_key = (folder / "host.pub").read_text()
    (folder / "known").write_text("".join(f"[{name}]:{PORT} {host_key}" for name in NAMES))
    (folder / "config").write_text(
        f"Port {PORT}\nUser root\nIdentityFile {folder}/user\nIdentitiesOnly yes\n"
        f"UserKnownHostsFile {folder}/known\nStrictHostKeyChecking yes\n"
    )
    with machines(2, tmp_path) as (a, b), ExitStack() as stack:
        for machine in (a, b):
            hosts_file(machine, "192.0.2.1 host-a", "192.0.2.2 host-b")
            script = f"mkdir /run/sshd; mount --bind {folder}/config /etc/ssh/ssh_config"
            subprocess.run([*machine.enter, "sh", "-c", script], check=True)
            server = stack.enter_context(serving_ssh(machine, folder))
            stack.callback(server.terminate)
        yield a, b


def serving_ssh(machine: Machine, folder: Path) -> subprocess.Popen[bytes]:
    """Whoever logs in finds mrc in PATH, and is a process of the machine."""
    assert SSHD is not None
    mark = machine.enter[1]
    config = folder / machine.name
    config.write_text(
        f"ListenAddress {machine.address}:{PORT}\nHostKey {folder}/host\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/user.pub\nStrictModes no\nUsePAM no\n"
        f"SetEnv {mark} PATH={Path(MRC).parent}:/usr/sbin:/usr/bin:/sbin:/bin\n"
    )
    server = subprocess.Popen([*machine.enter, SSHD, "-D", "-f", config])
    log_in = [*machine.enter, "ssh", machine.name, "true"]
    until(lambda: subprocess.run(log_in, capture_output=True).returncode == 0)
    return server


def test_by_ssh(pair: tuple[Machine, Machine], tmp_path: Path) -> None:
    """Goal: every command of README, typed on either machine, with the names of --on only."""
    a, b = pair
    assert "host-b (192.0.2.2): h1" in a.run("up", *SMALL, "--on", ",".join(NAMES))
    assert a.run("exec", "h1", "--", "sh", "-c", 'echo "$0: a  b"; exit 7', "x y", code=7) == (
        "x y: a  b\n"
    )
    # A command in a host reaches the other machine by way of the shell that has started it.
    rsh = f"{MRC} testbed exec h0 -- {MRC} testbed rsh h1 'uname -n'; exit $?"
    found = subprocess.run([*a.enter, "sh", "-c", rsh], capture_output=True, text=True, check=True)
    assert found.stdout == "h1\n"
    for one, other in ((a, "t1:1.1"), (b, "t1:1.0")):
        one.run("fail", other)
        assert [each["target"] for each in status(one)["faults"]] == [other]
        assert f"healed: {other}" in one.run("heal", "all")
    capture_pings(a, tmp_path / "x.pcap")
    scene = tmp_path / "scene.toml"
    scene.write_text(TRAFFIC)
    assert ran(b, scene, "mrc")["checks"][0]["met"]
    with a.start("exec", "h1", "--", "sleep", "1000") as sleeper:
        ended = "ended in h1: sleep 1000"
        until(lambda: any(b"sleep\0001000" in line for line in command_lines(b)))
        assert ended in b.run("down")
        sleeper.communicate(timeout=PATIENCE)
    assert is_clean(a, b)
