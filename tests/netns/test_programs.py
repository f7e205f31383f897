# SPDX-License-Identifier: Apache-2.0
"""Programs that are not mrc, over the fabric: ping, TCP and MPTCP by address, and their end; the
controller of the examples.

h0 and h1 have two planes of 200 Mbit/s with two T1s each.
"""

from __future__ import annotations

import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from netns.processes import Hosts, popen, run
from slowness import PATIENCE, until

from mrc.linux import netns
from mrc.testbed import bed as beds
from mrc.testbed import build, state
from mrc.testbed.bed import Testbed
from mrc.testbed.shape import Fabric

from .conftest import bed_of, has_ended

MIB = 1 << 20
FEW = 1 << 15  # bytes that the sockets hold


bed = bed_of(*Fabric, planes=2, t1=2, rate="200mbit")


@pytest.fixture(autouse=True)
def always_healed(healed: None) -> None:
    pass


# ---- Traffic --------------------------------------------------------------------------------


def tcp_socket(bed: Testbed, host: int) -> socket.socket:
    with netns.inside(bed.plan.nodes[f"h{host}"].namespace):
        made = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    made.settimeout(PATIENCE)
    return made


@contextmanager
def listening(bed: Testbed) -> Iterator[socket.socket]:
    with tcp_socket(bed, 1) as listener:
        listener.bind(("::", 0))
        listener.listen(64)
        yield listener


@contextmanager
def connected(bed: Testbed, address: object) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection from h0 to this address of h1: both ends."""
    with listening(bed) as listener, tcp_socket(bed, 0) as client:
        client.connect((str(address), listener.getsockname()[1]))
        server, _ = listener.accept()
        with server:
            server.settimeout(PATIENCE)
            yield client, server


def send(client: socket.socket, server: socket.socket) -> None:
    client.sendall(bytes(FEW))
    left = FEW
    while left:
        left -= len(server.recv(left))


def carried(bed: Testbed) -> dict[str, int]:
    """Bytes on the links between hosts and T0s."""
    return {name: each["bytes"] for name, each in bed.links().items() if "h" in name}


def test_ping__by_each_name(bed: Testbed) -> None:
    for name in ("h1", "h1.any", "h1.p1", "h1.p2", "h1.mgmt"):
        assert name in run(bed, "h0", "ping", "-c1", f"-W{PATIENCE:g}", name)


@pytest.mark.parametrize("name", ["h1", "h1.p2", "h1.mgmt"])
def test_ping__larger_than_the_mtu(bed: Testbed, name: str) -> None:
    """The kernel fragments it on the way out; the management network is IPv4, too."""
    for version in ("-6", "-4") if name == "h1.mgmt" else ("-6",):
        run(bed, "h0", "ping", version, "-c1", f"-W{PATIENCE:g}", "-s", "20000", name)


def test_name__of_a_host_is_on_the_planes_first_and_by_ipv4_on_the_management(bed: Testbed) -> None:
    first = ["fd00:a:1::1", "100.64.0.2"]
    for database, addresses in (("ahosts", first), ("ahostsv4", first[1:])):
        shown = run(bed, "h0", "getent", database, "h1").splitlines()
        assert [line.split()[0] for line in shown if "STREAM" in line] == addresses


def test_tcp__stays_in_its_plane(bed: Testbed) -> None:
    before = carried(bed)
    with connected(bed, bed.shape.addresses.in_plane(1, 2)) as (client, server):
        assert client.getsockname()[0] == str(bed.shape.addresses.in_plane(0, 2))
        send(client, server)
        server.sendall(bytes(1000))
        client.recv(1000, socket.MSG_WAITALL)
    grown = {name: now - before[name] for name, now in carried(bed).items()}
    assert grown["h0>t0:2.0"] > FEW and grown["t0:2.1>h1"] > FEW
    assert grown["h1>t0:2.1"] > 1000 and grown["t0:2.0>h0"] > 1000
    assert max(count for name, count in grown.items() if "2." not in name) < 1000


def test_tcp__several_flows_use_all_planes(bed: Testbed) -> None:
    """Each flow has its source port before it connects, because older kernels choose the path of
    others without. 24 flows that share one of two planes are one case in 2^23.
    """
    before = carried(bed)
    with listening(bed) as listener:
        for _ in range(24):
            with tcp_socket(bed, 0) as client:
                client.bind(("::", 0))
                client.connect((str(bed.shape.addresses.host(1)), listener.getsockname()[1]))
                server, _ = listener.accept()
                with server:
                    send(client, server)
    grown = {name: now - before[name] for name, now in carried(bed).items()}
    assert grown["h0>t0:1.0"] > FEW and grown["h0>t0:2.0"] > FEW
    assert grown["h0>t0:1.0"] + grown["h0>t0:2.0"] > 24 * FEW


@pytest.mark.parametrize(("name", "by_management"), [("h1", True), ("h1.p2", False)])
def test_mrc__exchanges_over_the_address_that_it_is_given(
    bed: Testbed, hosts: Hosts, tmp_path: Path, name: str, by_management: bool
) -> None:
    """h1 is the management address for mrc, although it is the fabric for other programs."""

    def sent() -> int:
        return int(run(bed, "h0", "cat", "/sys/class/net/mgmt/statistics/tx_bytes"))

    before = sent()
    hosts.recv(tmp_path)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_bytes(bytes(MIB))
    hosts.start("h0", "send", tmp_path / "source" / "file", name).ends(0)
    assert (tmp_path / "file").stat().st_size == MIB
    assert (sent() - before > 1000) == by_management


MPTCP = """\
import socket, sys
if sys.argv[1] == "take":
    with socket.create_server(("::", 0), family=socket.AF_INET6) as listener:
        print(listener.getsockname()[1], flush=True)
        taken, _ = listener.accept()
        with taken:
            while taken.recv(1 << 20):
                pass
else:
    with socket.create_connection(("h1", int(sys.argv[1]))) as sender:
        while True:
            sender.sendall(bytes(1 << 16))
"""
MISSING = None if shutil.which("mptcpize") else "needs mptcpize: apt-get install mptcpize"
if not Path("/proc/sys/net/mptcp/enabled").exists():
    MISSING = "needs a kernel with CONFIG_MPTCP"


@pytest.mark.default
@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_mptcp__uses_every_plane(bed: Testbed) -> None:
    """It sends until both have carried data: the kernel adds the second plane when it can."""
    mrc = [sys.executable, "-m", "mrc", "testbed", "--name", bed.name, "exec"]
    program = ["--", sys.executable, "-c", MPTCP]
    take = [*mrc, "--mptcp", "h1", *program, "take"]
    with subprocess.Popen(take, stdout=subprocess.PIPE, text=True) as taking:
        try:
            assert taking.stdout is not None
            port = taking.stdout.readline().strip()
            before, links = carried(bed), ("h0>t0:1.0", "h0>t0:2.0")

            def both_carry() -> bool:
                return all(carried(bed)[link] - before[link] > MIB for link in links)

            with subprocess.Popen([*mrc, "h0", "--mptcp", *program, port]) as giving:
                try:
                    until(both_carry, pause=0.05)
                    assert giving.poll() is None
                finally:
                    giving.kill()
            assert taking.wait(PATIENCE) == 0
        finally:
            taking.kill()
    bed.prepare_mptcp("h1")  # again, which changes nothing
    words = run(bed, "h1", "ip", "mptcp", "limits", "show").split()
    # Both ends try to join both addresses of the other one.
    assert dict(zip(words[::2], words[1::2], strict=True)) == {
        "subflows": "4", "add_addr_accepted": "2"
    }  # fmt: skip


# ---- Their end ------------------------------------------------------------------------------


@pytest.fixture
def small(bed_name: str) -> Testbed:
    bed = Testbed(bed_name, planes=1, t1=1)
    bed.up()
    return bed


def started(bed: Testbed, *command: str, where: str = "h0") -> subprocess.Popen[str]:
    """Starts a command, and waits for its first line."""
    process = popen(bed, where, *command)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def until_running(bed: Testbed, commands: set[str]) -> None:
    """A program has its own name only after its `exec`."""
    nodes, folder = build.namespaces(bed.name), state.folder(bed.name)
    until(lambda: commands <= {each.command for each in beds.find_programs(nodes, folder)})


@pytest.mark.default
def test_down__ends_programs_and_names_them(
    small: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One ends by SIGTERM, one ignores it, and one was left behind by its parent."""
    wait = beds._wait_for

    def wait_until_polite_ends(running: selectors.BaseSelector, deadline: float) -> None:
        until(lambda: has_ended(polite.pid))
        wait(running, deadline)

    monkeypatch.setattr(beds, "_GRACE_SECONDS", 0.2)
    monkeypatch.setattr(beds, "_wait_for", wait_until_polite_ends)
    polite = started(small, "sh", "-c", "echo; exec sleep 60")
    stubborn = started(small, "sh", "-c", "trap '' TERM; echo; sleep 61; sleep 61")
    orphan = started(small, "sh", "-c", "sleep 62 & echo $!")
    orphan.wait(PATIENCE)
    until_running(small, {"sleep 60", "sleep 61", "sleep 62"})
    try:
        found = small.down()
        assert (found.removed, found.left) == (True, ())
        told = {(each.node, each.command) for each in found.ended}
        assert told >= {("h0", "sleep 60"), ("h0", "sleep 61"), ("h0", "sleep 62")}
        assert polite.pid in {each.pid for each in found.ended}
        assert polite.wait(PATIENCE) == -signal.SIGTERM
        assert stubborn.wait(PATIENCE) == -signal.SIGKILL
        assert all(has_ended(each.pid) for each in found.ended)
    finally:
        for each in (polite, stubborn, orphan):
            each.kill()
            each.wait()
            assert each.stdout is not None
            each.stdout.close()


def test_down__ends_programs_in_switches(small: Testbed) -> None:
    with started(small, "sh", "-c", "echo; exec sleep 65", where="t1:1.0") as process:
        try:
            found = small.down()
            told = [(each.node, each.pid) for each in found.ended]
            assert (told, found.left) == ([("t1:1.0", process.pid)], ())
            assert process.wait(PATIENCE) == -signal.SIGTERM
        finally:
            process.kill()


def test_down__leaves_what_others_started(small: Testbed) -> None:
    enter = ["ip", "netns", "exec", small.plan.nodes["h1"].namespace]
    argv = [*enter, "sh", "-c", "echo; exec sleep 63"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as foreign:
        try:
            assert foreign.stdout is not None
            foreign.stdout.readline()
            found = small.down()
            assert found.ended == ()
            assert [(each.pid, each.node) for each in found.left] == [(foreign.pid, "h1")]
            assert foreign.poll() is None
        finally:
            foreign.kill()


def test_down__typed_in_the_test_bed_leaves_its_own_shell(small: Testbed) -> None:
    """Each of the two is in h0, and only the sleep ends."""
    runs = 'until grep -q sleep "/proc/$!/comm"; do :; done'
    down = f"'{sys.executable}' -m mrc testbed down --name {small.name}"
    script = f"sleep 64 & {runs}; {down}; echo alive"
    argv, environment = small.host_command("h0", ["sh", "-c", script])
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    ended, is_down, alive = done.stdout.splitlines()
    assert ended.startswith("ended in h0: sleep 64 (process ")
    assert (is_down, alive) == (f"{small.name} is down", "alive")
    assert done.stderr.startswith("mrc testbed down: still runs, in h0 that is gone: sh -c sleep")
    assert done.stderr.count("\n") == 1
    assert not state.folder(small.name).exists()


@pytest.mark.default
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_up__ended_by_a_signal_leaves_nothing(bed_name: str, signum: int) -> None:
    """Method: it gets the signal when it has the first namespaces and sets up their filters."""
    script = (
        "import os, sys; from mrc.cli.main import main; from mrc.testbed import build\n"
        f"build.apply_rules = lambda scripts: os.kill(os.getpid(), {signum})\n"
        f"sys.exit(main(['testbed', 'up', '--name', '{bed_name}', '--planes', '1', '--t1', '1']))"
    )
    # The tests may run under nohup, which ignores SIGHUP, and mrc keeps that.
    argv = ["env", "--default-signal=HUP", sys.executable, "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 128 + signum
    assert done.stderr.startswith("mrc testbed up: ")
    assert done.stderr.count("\n") == 1
    assert not [each for each in netns.names() if bed_name in each]
    assert state.load(bed_name) is None


# ---- A controller, while a T1 loses packets ------------------------------------------------------


LOSSY = "t1:1.0"
CONTROLLER = [sys.executable, "-m", "mrc.examples.controller", "h1"]


@pytest.mark.slow
@pytest.mark.parametrize("bed", [Fabric.KERNEL], indirect=True)
def test_controller__denies_the_paths_over_a_lossy_t1(
    bed: Testbed, hosts: Hosts, tmp_path: Path
) -> None:
    hosts.recv(tmp_path)
    bed.fail(LOSSY, loss=0.4)
    denied: list[str] = []
    rounds_after = 0
    with popen(bed, "h0", *CONTROLLER) as process:
        assert process.stdout is not None
        watchdog = threading.Timer(PATIENCE, process.kill)
        watchdog.start()
        try:
            for line in process.stdout:
                if line.startswith("denied "):
                    denied += line.split()[1:]
                    rounds_after = 0
                elif denied:
                    rounds_after += 1
                if rounds_after > 5:
                    break  # as many rounds as count: no other path loses
        finally:
            watchdog.cancel()
            process.kill()
    assert rounds_after > 5
    assert denied == [LOSSY]


@pytest.mark.slow
@pytest.mark.parametrize("bed", [Fabric.KERNEL], indirect=True)
def test_controller__drains_and_keeps_the_last_path(
    bed: Testbed, hosts: Hosts, tmp_path: Path
) -> None:
    hosts.recv(tmp_path)
    with popen(bed, "h0", *CONTROLLER, "t1:2.*", "t1:1.0") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "drained t1:1.0 t1:2.0 t1:2.1\n"
        assert process.stdout.readline() == "paths in use: 1\n"
        process.kill()
    with popen(bed, "h0", *CONTROLLER, "*", stderr=subprocess.PIPE) as process:
        assert "ValueError: *: no other path works" in process.communicate()[1]
