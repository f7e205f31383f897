# SPDX-License-Identifier: Apache-2.0
"""A test bed over several machines, as typed on one of them; also by a real ssh.

h0 -- t0:P.0 --+-- t1:P.0        host-a
               |
h1 -- t0:P.1 --+-- t1:P.1        host-b        P = 1, 2
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from printed import printed
from slowness import PATIENCE, until

from mrc.testbed.shape import Shape

from .conftest import needs_real_root
from .machines import MRC, Machine, hosts_file, machines, status

SMALL, SHAPE = ("--planes", "2"), Shape(planes=2)
EVERY = {"1.0", "1.1", "2.0", "2.1"}
NODES = {
    "host-a": {"h0", "mgmt", "t0-1-0", "t0-2-0", "t1-1-0", "t1-2-0"},
    "host-b": {"h1", "mgmt", "t0-1-1", "t0-2-1", "t1-1-1", "t1-2-1"},
}
Pair = tuple[Machine, Machine]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with machines(2, tmp_path) as (a, b):
        yield a, b


@pytest.fixture
def on(tmp_path: Path) -> tuple[str, str]:
    return "--on", str(tmp_path / "on.toml")


@pytest.fixture
def up(pair: Pair, on: tuple[str, str]) -> Pair:
    """The test bed is up."""
    pair[0].run("up", *SMALL, *on)
    return pair


def check_paths(machine: Machine, wanted: set[str]) -> None:
    """Echoes return on these paths from h0 to h1, `plane.T1`, and on no others. Each gets three at
    a time, until all of these have answered.
    """
    ways = {str(path.dst): path.name for path in SHAPE.paths(0, 1)}
    script = "for each; do (ping -c3 -i0.3 -W1 $each >/dev/null && echo $each) & done; wait"
    found: set[str] = set()

    def all_wanted() -> bool:
        told = machine.run("exec", "h0", "--", "sh", "-c", script, "sh", *ways)
        found.update(ways[line].removeprefix("t1:") for line in told.split())
        return found >= wanted

    until(all_wanted, found)
    assert found == wanted


def capture_pings(machine: Machine, file: Path) -> None:
    """Captures a link that pings cross, possibly on another machine."""
    with machine.start("capture", "t0:1.1", file) as capture:
        assert capture.stderr is not None
        assert "capturing" in capture.stderr.readline()
        machine.run("exec", "h0", "--", "ping", "-c", "3", "-i", "0.1", "h1.p1")
        capture.send_signal(signal.SIGINT)
        assert capture.wait(PATIENCE) == 0
        said = capture.stderr.read()
    count = re.search(r"(\d+) packets", said)
    assert count and int(count[1]) >= 6, said
    assert file.stat().st_size > 6 * 100


def is_clean(*every: Machine) -> bool:
    return not any(machine.namespaces() for machine in every)


def block(machine: Machine, what: str) -> None:
    """Drops VXLAN packets that arrive, as a firewall would."""
    rule = f"table inet t {{\nchain c {{\ntype filter hook input priority 0\n{what} drop\n}}\n}}\n"
    subprocess.run([*machine.enter, "nft", "-f", "-"], input=rule, text=True, check=True)


def test_two_machines(pair: Pair, on: tuple[str, str]) -> None:
    """Goal: paths, faults, exec, status and down work from either machine."""
    a, b = pair
    said = a.run("up", *SMALL, *on)
    assert "host-b (192.0.2.2): h1, t0:*.1, t1:*.1, 4 links to other machines" in said
    for machine in pair:
        nodes = {f"mrc-lab-{node}" for node in NODES[machine.name]}
        assert {*machine.namespaces()} == nodes | {"lab"}
    check_paths(a, EVERY)
    b.run("fail", "plane:2")
    check_paths(b, {"1.0", "1.1"})
    found = status(a)
    assert [each["target"] for each in found["faults"]] == ["plane:2"]
    assert len(found["links"]) == 24
    assert a.run("exec", "h1", "--", "sh", "-c", 'echo "$0: a  b"; exit 7', "x y", code=7) == (
        "x y: a  b\n"
    )
    a.run("down")
    assert is_clean(a, b)


READ = """
import sys, urllib.request
kind = {"Content-Type": "application/json"}
wanted = urllib.request.Request(sys.argv[1], sys.argv[2].encode() or None, kind)
for line in urllib.request.urlopen(wanted, timeout=100):
    print(line.decode(), end="", flush=True)
"""


def test_view(up: Pair) -> None:
    """Goal: one page shows and breaks links of both machines, and says when one is lost."""
    a, b = up

    def until_links(holds: Callable[[dict[str, Any]], bool]) -> None:
        assert feed.stdout is not None
        for line in feed.stdout:
            if '"unknown":' in line and holds(json.loads(line.removeprefix("data: "))):
                return
        raise AssertionError("the page ended")

    def moved(frame: dict[str, Any], name: str) -> bool:
        return bool(frame["rates_bps"][names.index(name)])

    names = list(status(a)["links"])
    with ExitStack() as stack:
        view = stack.enter_context(a.start("view", "--json"))
        stack.callback(view.terminate)
        assert view.stdout is not None
        url = printed("testbed view", view.stdout.readline())["url"]
        read = [*a.enter, sys.executable, "-c", READ]
        argv = [*read, f"{url}feed", ""]
        feed = stack.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
        stack.callback(feed.kill)
        ping = stack.enter_context(b.start("exec", "h1", "--", "ping", "-i", "0.1", "h0.p1"))
        stack.callback(ping.terminate)
        until_links(lambda frame: moved(frame, "h0>t0:1.0") and moved(frame, "h1>t0:1.1"))
        change = json.dumps({"do": "fail", "target": "t1:1.1"})
        subprocess.run([*read, f"{url}change", change], check=True)
        until_links(lambda frame: [*frame["faults"]] == ["t1:1.1"])
        assert [each["target"] for each in status(b)["faults"]] == ["t1:1.1"]
        b.kill()
        until_links(lambda frame: names.index("h1>t0:1.1") in frame["unknown"])
        until_links(lambda frame: names.index("h0>t0:1.0") not in frame["unknown"])
        view.send_signal(signal.SIGINT)
        assert view.wait(PATIENCE) == 130
    a.run("down", code=3)


@pytest.mark.default
def test_machine_that_dies(up: Pair) -> None:
    """Goal: the other says what is lost, goes on, and cleans up."""
    a, b = up
    b.kill()
    found = status(a)
    assert [bool(each["lost"]) for each in found["machines"]] == [False, True]
    assert found["machines"][1]["switches"] == ["t0:1.1", "t1:1.1", "t0:2.1", "t1:2.1"]
    assert {name.partition(">")[0] for name in found["links"]} == {
        "h0", "t0:1.0", "t0:2.0", "t1:1.0", "t1:2.0",
    }  # fmt: skip
    assert "host-b is lost, and left out" in a.run("fail", "plane:1")
    said = a.run("down", code=3)
    assert re.search(r"host-b does not answer: .*; it keeps its part until mrc testbed down", said)
    assert is_clean(a)


def test_up__killed_in_the_middle_leaves_nothing(pair: Pair, on: tuple[str, str]) -> None:
    a, b = pair
    while True:
        with a.start("up", "clos", *on) as up:
            until(lambda: b.namespaces() and a.namespaces())
            up.kill()
        if up.returncode == -signal.SIGKILL:
            break
        a.run("down")  # this test stood still until it was up
    until(lambda: is_clean(a, b))
    assert "lab is down" in a.run("status", code=1)


@pytest.mark.slow
def test_up__refuses_in_one_line_and_leaves_nothing(
    pair: Pair, on: tuple[str, str], tmp_path: Path
) -> None:
    a, b = pair
    said = a.run("up", *on, "--mtu", "9001", code=1)
    assert said.endswith(
        "links of MTU 9001 over VXLAN require 9051: use --mtu 9000, or raise the MTU of the "
        "machines' network\n"
    )
    block(b, "udp dport 47900 meta length > 9000")
    assert "small ones pass: use a smaller --mtu" in a.run("up", *on, code=1)
    block(b, "udp dport 47900")
    assert "does a firewall block UDP port 47900?" in a.run("up", *on, code=1)
    file = tmp_path / "on.toml"
    listed = file.read_text()
    other = tmp_path / "mrc"
    other.write_text('#!/bin/sh\necho Welcome\necho \'{"mrc_testbed_part": "0.0"}\'\ncat\n')
    other.chmod(0o755)
    head, _, tail = listed.rpartition(MRC)
    file.write_text(f"{head}{other}{tail}")
    assert re.search(
        "host-b: has mrc 0.0, and this machine .*: install the same", a.run("up", *on, code=1)
    )
    file.write_text(f"{head}/nowhere{tail}")
    assert re.search("host-b does not answer: .*/nowhere: not found", a.run("up", *on, code=3))
    assert is_clean(a, b)


@pytest.mark.slow
def test_up__a_part_that_dies_in_the_middle(pair: Pair, on: tuple[str, str]) -> None:
    """Goal: the others remove theirs, and so does a second process on the same machine."""
    a, b = pair
    with a.start("up", "clos", *on) as up:
        until(b.namespaces)
        for pid in list(b.processes()):
            if b"part" in Path(f"/proc/{pid}/cmdline").read_bytes():
                subprocess.run(["kill", "-KILL", str(pid)], check=True)
        _, said = up.communicate(timeout=PATIENCE)
        assert up.returncode == 3, said
    assert is_clean(a, b)


@pytest.mark.slow
def test_the_rest(up: Pair, on: tuple[str, str], tmp_path: Path) -> None:
    """Goal: management, drain, links down, a schedule, captures, and what `up` says again."""
    a, b = up
    for version in ("-4", "-6"):
        a.run("exec", "h1", "--", "ping", version, "-c1", "h0.mgmt")
    assert "was up already" in b.run("up", *SMALL, *on)
    assert "first run mrc testbed down" in a.run("up", *on, code=1)
    assert "another division between machines" in a.run("up", *SMALL, code=1)
    a.run("drain", "t1:1.0")
    b.run("drain", "plane:2")
    assert "would lose their last path" in a.run("drain", "t1:1.1", code=2)
    a.run("undrain", "all")
    a.run("fail", "t1:1.1", "--mode", "down")
    check_paths(a, EVERY - {"1.1"})
    assert "healed: t1:1.1" in b.run("heal", "all")
    capture_pings(a, tmp_path / "x.pcap")
    a.run("exec", "h1", "--", "ip", "link", "set", "p2", "down")
    assert status(a)["taken_down"] == ["h1:p2"]
    a.run("heal", "link:h1.2")
    check_paths(a, EVERY)
    file = tmp_path / "faults.toml"
    file.write_text(
        '[[faults]]\ntarget = "plane:2"\nkind = "silent"\nat = "200ms"\nuntil = "500ms"\n'
    )
    lines = a.run("run", file, "--json").splitlines()
    events = [json.loads(line)["event"] for line in lines if line.startswith("{")]
    assert events == ["fail", "heal"]
    assert "is on several machines" in a.run("capture", "plane:1", tmp_path / "x", code=2)
    subprocess.run([*b.enter, "rm", "-r", "/run/mrc/lab"], check=True)
    assert "was it restarted?" in status(a)["machines"][1]["lost"]
    assert "lab is up" in a.run("up", *SMALL, *on)
    check_paths(b, EVERY)
    a.run("down")
    assert is_clean(a, b)


TRAFFIC = """
title = "between machines"
topology = { hosts = 2, planes = 2, t1 = 2, host_rate = "500Mbit/s" }
run = { until = "60s", sample = "10ms" }
[[traffic]]
kind = "permutation"
write = "256KiB"
writes = 8
[[traffic]]
kind = "ring"
group = "training"
write = "32KiB"
steps = 3
compute = "20ms"
start = "100ms"
[[faults]]
target = "t1:1.1"
kind = "silent"
at = "20ms"
until = "200ms"
[[checks]]
measure = "completed"
"""


def ran(machine: Machine, file: Path, over: str) -> dict[str, Any]:
    """What `mrc testbed run` prints as JSON; it also prints notes."""
    lines = machine.run("run", file, "--over", over, "--json").splitlines()
    return printed("testbed run --over", next(line for line in lines if line[0] == "{"))


def test_run__traffic_between_machines(up: Pair, tmp_path: Path) -> None:
    """Goal: both ends answer in the time of the command, steps and faults included."""
    _, b = up
    file = tmp_path / "scene.toml"
    file.write_text(TRAFFIC)
    result = ran(b, file, "mrc,tcp")
    assert result["checks"][0]["met"]
    for run in result["runs"]:
        assert [flow["completed"] for flow in run["flows"]] == [8, 8, 6, 6]
        assert all(flow["received_bytes"] for flow in run["flows"])
        first, last = (f(flow[key] for flow in run["flows"][2:])
                       for f, key in ((min, "first_ns"), (max, "last_ns")))  # fmt: skip
        assert first >= 120_000_000 and last - first >= 2 * 20_000_000
    assert not any(b"mrc.sim.host" in line for each in up for line in command_lines(each))


def command_lines(machine: Machine) -> Iterator[bytes]:
    for pid in machine.processes():
        with suppress(OSError):
            yield Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.slow
def test_run__a_machine_that_dies_ends_it(up: Pair, tmp_path: Path) -> None:
    a, b = up
    file = tmp_path / "scene.toml"
    file.write_text(TRAFFIC.replace("writes = 8", "writes = 1000000"))
    with a.start("run", file) as run:
        until(lambda: any(b"mrc.sim.host" in line for line in command_lines(b)))
        b.kill()
        _, said = run.communicate(timeout=PATIENCE)
    assert run.returncode == 3 and "Traceback" not in said, said
    assert "h1: host-b does not answer: " in said
    assert not any(b"mrc.sim.host" in line for line in command_lines(a))
    a.run("down", code=3)


# ---- By ssh, each with an sshd of its own --------------------------------------------------------


SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin")
PORT = 2222
NAMES = ("host-a", "host-b")


@pytest.fixture
def pair_by_ssh(tmp_path: Path) -> Iterator[Pair]:
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


@pytest.mark.slow
@pytest.mark.skipif(SSHD is None, reason="needs sshd: apt-get install openssh-server")
@needs_real_root
def test_by_ssh(pair_by_ssh: Pair, tmp_path: Path) -> None:
    """Goal: every command of README, typed on either machine, with the names of --on only."""
    a, b = pair_by_ssh
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
