# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed` as a user types it.

h0 -- t0:1.0 -- t1:1.0 -- t0:1.1 -- h1
"""

from __future__ import annotations

import csv
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest
import walls
from netns.processes import Hosts
from printed import printed
from processes import needs_tshark, terminal, tshark
from scapy.layers.inet import UDP
from scapy.packet import Packet
from scapy.utils import PcapReader
from slowness import PATIENCE, until

from mrc.cli.main import main
from mrc.dissect import cli as dissect_cli
from mrc.linux import netns, system
from mrc.testbed import bed as beds
from mrc.testbed import capture, rootless, state
from mrc.testbed.bed import Testbed
from mrc.testbed.faults import Mode
from mrc.testbed.shape import Fabric
from mrc.testbed.tiers import LinkChange
from mrc.testbed.topology import Addresses

from .conftest import bed_of, needs_real_root, udp_socket

SMALL = ("--planes", "1", "--t1", "1")


bed = bed_of(planes=1, t1=1)


@pytest.fixture(scope="module")
def name(bed: Testbed) -> str:
    return bed.name


@pytest.fixture(autouse=True)
def healed(bed: Testbed) -> Iterator[None]:
    yield
    bed.heal("all")


def typed(*words: str) -> int:
    return main(["testbed", *words])


def begun(*words: str, **streams: Any) -> subprocess.Popen[Any]:
    """Starts `mrc testbed` in a new process; its output is a pipe."""
    argv = [sys.executable, "-m", "mrc", "testbed", *words]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=streams.pop("text", True), **streams)


def execute(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs `mrc testbed` in a new process, because `exec` replaces its process."""
    with begun(*words, stderr=subprocess.PIPE) as process:
        out, said = process.communicate()
    return subprocess.CompletedProcess(words, process.returncode, out, said)


@pytest.mark.default
def test_up__says_what_it_built_and_down_what_it_removed(
    bed_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("up", "--name", bed_name, *SMALL, "--rate", "1gbit") == 0
    assert typed("up", "--name", bed_name, *SMALL, "--rate", "1gbit") == 0
    assert typed("down", "--name", bed_name) == 0
    assert typed("down", "--name", bed_name) == 0
    shape = "2 hosts, 1 plane, 1 T1 per plane, 1 Gbit/s per link, MTU 9000"
    assert capsys.readouterr().out.splitlines() == [
        f"{bed_name} is up: {shape}",
        f"{bed_name} was up already: {shape}",
        f"{bed_name} is down",
        f"{bed_name} was not up",
    ]


def test_up__with_other_parameters_is_a_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("up", "--name", name) == 1
    assert capsys.readouterr().err == (
        f"mrc testbed up: test bed {name} is up with planes 1, not 4, t1 1, not 2: "
        f"first run mrc testbed down --name {name}\n"
    )


@pytest.mark.default
def test_status__draws_and_lists_faults(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("--name", name, "fail", "t1:1.0", "--loss", "20%") == 0
    assert typed("status", "--name", name) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:6] == [
        "t1:1.0 fails: loss 20.00%",
        f"{name} is up: 2 hosts, 1 plane, 1 T1 per plane, 500 Mbit/s per link, MTU 9000",
        "",
        "plane 1     h0 -- t0:1.0 --+-- t1:1.0 x",
        "            h1 -- t0:1.1 --+",
        "",
    ]
    assert [line.split() for line in lines[7:9]] == [
        ["h0", "fd00:a::1", "fd00:a::1:0", "fd00:c::1"],
        ["h1", "fd00:a:1::1", "fd00:a:1::1:0", "fd00:c::2"],
    ]  # then rows of links, if the kernel has sent packets on them
    assert lines[-1] == "t1:1.0 fails: loss 20.00%"


SILENT = {
    "mode": "silent", "loss_share": 1.0, "corrupt_share": 0.0, "duplicate_share": 0.0,
    "reorder_share": 0.0, "reorder_ns": None, "delay_ns": 0, "jitter_ns": 0,
    "rate_bits_per_second": None, "rate_share": None, "mtu_bytes": None,
}  # fmt: skip


def test_actions__as_json(bed_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    def told(action: str, *words: str, code: int = 0) -> dict[str, Any]:
        assert typed(action, "--name", bed_name, *words, "--json") == code
        return printed(f"testbed {action}", capsys.readouterr().out)

    assert told("status", code=1) == {
        "result": "NotUp", "schema": 1, "name": bed_name, "state": "down",
    }  # fmt: skip
    assert told("up", *SMALL)["built"] is True
    assert told("up", *SMALL)["built"] is False
    fault = {"target": "t1:1.0", **SILENT, "loss_share": 0.2}
    assert told("fail", "t1:1.0", "--loss", "20%")["fault"] == fault
    down = {"target": "plane:1", **SILENT, "mode": "down"}
    assert told("fail", "plane:1", "--mode", "down")["fault"] == down
    small = {"target": "link:h1.1", **SILENT, "loss_share": 0.0, "mtu_bytes": 1500}
    assert told("fail", "link:h1.1", "--mtu", "1500")["fault"] == small
    status = told("status")
    assert (status["state"], status["fabric"], status["counters"]) == ("up", "kernel", None)
    assert status["host_rate_bits_per_second"] == 500_000_000
    assert status["faults"] == [fault, down, small]
    assert status["missing"] == []
    assert status["links"]["h0>t0:1.0"]["rate_bits_per_second"] == 500_000_000
    host = status["hosts"][1]
    assert (host["host"], host["namespace"]) == ("h1", f"mrc-{bed_name}-h1")
    assert (host["address"], host["oob"]) == ("fd00:a:1::1", "fd00:c::2")
    assert host["plane_addresses"] == ["fd00:a:1::1:0"]
    assert Path(host["config"]).is_file()
    healed = told("heal", "plane:1")
    assert (healed["healed"], healed["failing"]) == (["plane:1"], ["t1:1.0", "link:h1.1"])
    assert told("down")["removed"] is True
    assert told("down")["removed"] is False


def test_status__shows_links_that_carry(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("fail", "link:h1.1", "--rate", "50%", "--name", name, "--quiet") == 0
    load = ("ping", "-6", "-f", "-q", "-s", "8000", str(Addresses().on_path(1, 1, 0)))
    argv, env = Testbed.existing(name).host_command("h0", load)
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE) as ping:
        try:
            rows: list[list[str]] = []
            while not rows or rows[0][2] not in ("kbit/s", "Mbit/s"):  # after the first packets
                assert typed("status", "--name", name, "--interval", "50ms") == 0
                lines = capsys.readouterr().out.splitlines()
                rows = [line.split() for line in lines if line.startswith("h0>t0:1.0 ")]
        finally:
            ping.terminate()
    assert lines[10].split()[:5] == ["link", "rate", "limit", "busy", "queue"]
    assert rows[0][3:5] == ["500", "Mbit/s"] and rows[0][5].endswith("%")


def test_status__as_csv(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("status", "--name", name, "--csv") == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    links = list(Testbed.existing(name).links())
    assert [row["link"] for row in rows] == links and "t0:1.0>t1:1.0" in links
    assert {row["rate_bits_per_second"] for row in rows} == {"500000000"}
    assert {row["peak_bytes"] for row in rows} == {""}  # null in a kernel fabric


def test_status__watches_until_the_test_bed_is_down(bed_name: str) -> None:
    assert typed("up", "--name", bed_name, *SMALL) == 0
    watch = ("--name", bed_name, "status", "--watch", "--json", "--interval", "20ms")
    with begun(*watch) as watching:
        assert watching.stdout is not None
        for _ in range(3):
            status = printed("testbed status", watching.stdout.readline())
            assert status["links"]["h0>t0:1.0"]["rate_bits_per_second"] == 500_000_000
        assert typed("down", "--name", bed_name) == 0
        *_, last = watching.stdout
        assert printed("testbed status", last)["state"] == "down"
    assert watching.returncode == 1


def test_status__watch_as_text_names_other_rates(bed_name: str) -> None:
    slow = LinkChange("link:h0.1", rate_bps=10_000_000)
    with Testbed(bed_name, planes=1, t1=1, links=(slow,)):
        watch = ("status", "--name", bed_name, "--watch", "--interval", "20ms")
        with begun(*watch) as watching:
            assert watching.stdout is not None
            lines = [next(watching.stdout)]
            while lines.count("link:h0.1 has 10 Mbit/s\n") < 2:  # rows of links may be between
                lines.append(next(watching.stdout))
            watching.send_signal(signal.SIGINT)
            watching.communicate(timeout=PATIENCE)
            assert watching.returncode == 130
    assert not any("fd00:" in line for line in lines)


def test_status__watch_answers_keys_and_a_new_size_while_it_measures(bed_name: str) -> None:
    with Testbed(bed_name, planes=1, t1=1), terminal() as seat:
        watch = ("testbed", "status", "--watch", "--interval", "1000", "--name", bed_name)
        with seat.running(sys.executable, "-m", "mrc", *watch, TERM="xterm") as watching:
            seat.until("measuring")
            seat.until("q: quit")
            seat.resize(10, 60)
            assert seat.until("q: quit").count("\n") == 9
            seat.press("q")
            assert watching.wait(PATIENCE) == 0


def test_status__of_none_names_the_others(
    name: str, bed_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("status", "--name", bed_name) == 1
    shown = capsys.readouterr().out
    assert shown.startswith(f"{bed_name} is down; other test beds: ")
    assert name in shown


def test_heal__says_what_is_left(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for target in ("plane:1", "t1:1.0", "link:h0.1"):
        assert typed("fail", target, "--name", name, "--quiet") == 0
    capsys.readouterr()
    assert typed("heal", "t1:1.0", "--name", name) == 0
    assert typed("heal", "all", "--name", name) == 0
    assert typed("heal", "all", "--name", name) == 0
    assert capsys.readouterr().out.splitlines() == [
        "healed: t1:1.0; still failing: plane:1, link:h0.1",
        "healed: plane:1, link:h0.1; still failing: none",
        "healed: none; still failing: none",
    ]


def test_exec__mptcp_requires_its_wrapper_and_the_kernel(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = ("exec", "--name", name, "--mptcp", "h0", "--", "true")
    (tmp_path / "mptcpize").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(beds, "_MPTCP_ENABLED", tmp_path / "enabled")
    assert typed(*command) == 1
    assert capsys.readouterr().err == (
        "mrc testbed exec: this kernel has no MPTCP: it requires CONFIG_MPTCP\n"
    )
    (tmp_path / "mptcpize").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(system, "SYSTEM_FOLDERS", "/nowhere")
    assert typed(*command) == 1
    assert capsys.readouterr().err == (
        "mrc testbed exec: mptcpize is missing: apt-get install mptcpize\n"
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "ACTION"),
        (("fail", "plane:7"), "no plane 7, use 1..1"),
        (("fail", "everything"), "target 'everything' is not all, plane:P, t0:P.N"),
        (("fail", "plane:1", "--loss", "0%"), "not a percentage"),
        (("fail", "plane:1", "--loss", "5%", "--mode", "down"), "use mode silent"),
        (("fail", "plane:1", "--mode", "half"), "--mode: "),
        (("fail", "plane:1", "--delay", "0ms"), "the fault has no effect"),
        (("fail", "plane:1", "--rate", "0"), "'0' is not a rate of at least 1kbit"),
        (("fail", "plane:1", "--rate", "none"), "'none' is not a rate of at least 1kbit"),
        (("heal", "t0:1.9"), "no T0 9"),
        (("up", "--planes", "0"), "planes is 0"),
        (("up", "--rate", "quick"), "rate 'quick' is not like 500mbit"),
        (("up", *SMALL, "--ecn-low", "1MiB"), "cannot mark or trim: use --fabric emulated"),
        (("status", "--csv", "--watch"), "--csv: not with --watch"),
        (("down", "--name", "a/b"), "name 'a/b'"),
        (("exec", "h0"), "no command: "),
        (("exec", "h0", "--"), "no command: "),
        (("exec", "h0", "-b3"), "unrecognized option -b3; a command comes after --"),
        (("exec", "h0", "--user"), "--user: expected one argument"),
        (("exec", "h9", "--", "true"), "no host h9"),
        (("exec", "h0", "--schedule"), "--schedule: expected one argument"),
        (("run", "x.toml", "--until", "soon"), "is not a time"),
        (("capture", "h7", "x.pcap"), "no host h7 in test bed"),
        (("capture", "switch", "x.pcap"), "nor a host"),
        (("capture", "h0", "x.pcap", "--count", "0"), "is not a number from 1 to"),
        (("capture", "h0", "-", "--json"), "excludes --json"),
        (("shell", "h7"), "no host h7"),
        (("shell", "t0:9.0"), "no plane 9"),
    ],
)
def test_testbed__wrong_use_is_one_line_and_exit_2(
    name: str, words: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("--name", name, *words) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


@pytest.fixture
def faults(tmp_path: Path) -> str:
    """One fault from 20 ms to the end, another from 0 to 40 ms."""
    file = tmp_path / "faults.toml"
    file.write_text(
        '[[faults]]\ntarget = "t1:1.0"\nkind = "silent"\nat = "20ms"\n'
        '[[faults]]\ntarget = "link:h0.1"\nkind = "loss"\nshare = "1%"\nuntil = "40ms"\n'
    )
    return str(file)


@pytest.mark.default
@walls.needs("lab")
def test_run__tells_and_heals(name: str, faults: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("run", faults, "--name", name, "--until", "200ms", "--json") == 0
    told = [printed("testbed run", line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["event"], each["target"], each["due_seconds"]) for each in told] == [
        ("fail", "link:h0.1", 0), ("fail", "t1:1.0", 0.02), ("heal", "link:h0.1", 0.04)
    ]  # fmt: skip
    assert all(each["seconds"] >= each["due_seconds"] for each in told)
    assert told[0]["fault"]["loss_share"] == 0.01 and told[-1]["fault"] is None
    assert Testbed.existing(name).faults() == {}


def test_run__heals_at_a_signal(name: str, faults: str) -> None:
    with begun("run", "--name", name, faults, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "mrc testbed run: interrupted\n"
        assert process.wait() == 130
    assert [line.split(" s  ")[1] for line in lines] == [
        "link:h0.1 fails: loss 1.00%\n", "t1:1.0 fails: silent\n", "link:h0.1 healed\n"
    ]  # fmt: skip
    assert Testbed.existing(name).faults() == {}


def test_exec__with_a_schedule_heals_when_the_command_ends(name: str, faults: str) -> None:
    words = ("exec", "h0", "--name", name, "--schedule", faults, "--", "sh", "-c")
    pipe, script = subprocess.PIPE, "read _; echo $MRC_CONFIG; exit 5"
    with begun(*words, script, stdin=pipe, stderr=pipe) as running:
        assert running.stdin is not None and running.stderr is not None
        assert any("t1:1.0 fails: silent" in line for line in running.stderr)
        out, _ = running.communicate("go on\n")
    assert (running.returncode, out) == (5, f"{state.config_path(name, 'h0')}\n")
    assert Testbed.existing(name).faults() == {}


def test_exec__with_a_schedule_is_killed(name: str, faults: str) -> None:
    """The command in the host does not outlive it."""
    words = ("exec", "h0", "--name", name, "--schedule", faults, "--", "sh", "-c")
    with begun(*words, "echo $$; exec sleep 100000") as running:
        assert running.stdout is not None
        end = os.pidfd_open(int(running.stdout.readline()))
        running.kill()
        assert select.select([end], [], [], PATIENCE)[0]
        os.close(end)
    assert typed("heal", "all", "--name", name) == 0


def test_up__names_what_is_missing(
    bed_name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(system, "SYSTEM_FOLDERS", "/nowhere")
    assert typed("up", "--name", bed_name, *SMALL) == 1
    assert capsys.readouterr().err == (
        "mrc testbed up: ip and nft and sh and mount are missing:"
        " apt-get install iproute2 nftables dash mount\n"
    )
    assert not [each for each in netns.names() if bed_name in each]


def test_exec__name_may_stand_anywhere(name: str) -> None:
    """All after -- is the command's, and its exit code is that of mrc."""
    command = ("--", "sh", "-c", "echo $MRC_CONFIG -- $0; exit 42", "--name")
    for words in (
        ("--name", name, "exec", "h1", *command),
        ("exec", "--name", name, "h1", *command),
        ("exec", "h1", "--name", name, *command),
        ("exec", "h1", f"--name={name}", *command),
    ):
        done = execute(*words)
        assert done.stdout == f"{state.config_path(name, 'h1')} -- --name\n", done.stderr
        assert done.returncode == 42


@needs_real_root
def test_exec__as_a_user(name: str) -> None:
    for words in (("--user", "nobody", "h1"), ("h1", "--user", "nobody")):
        command = ("--", "sh", "-c", "id -un; cat $MRC_CONFIG")
        done = execute("--name", name, "exec", *words, *command)
        assert done.stdout.startswith("nobody\n") and 'host = "h1"' in done.stdout, done.stderr


def test_exec__no_such_command(name: str) -> None:
    done = execute("exec", "h0", "--name", name, "--", "mrc-nothing")
    assert done.stderr == "mrc testbed exec: mrc-nothing: command not found\n"
    assert done.returncode == 127


def test_exec__finds_mrc_itself(bed: Testbed) -> None:
    """Even if the virtual environment of mrc is not activated."""
    argv, env = bed.host_command("h0", ["python3", "-c", "import mrc"])
    assert env["PATH"].split(":")[-1] == str(Path(sys.executable).parent)
    assert argv[:3] == [*system.require("ip"), "netns", "exec"]


def test_up__emulated_takes_its_own_options(
    bed_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ("--name", bed_name)
    queues = ("--delay", "1ms", "--jitter", "2us", "--buffer", "1MiB", "--ecn-low", "64KiB")
    assert typed("up", *named, *SMALL, "--fabric", "emulated", *queues, "--no-trim") == 0
    shape = Testbed.existing(bed_name).shape
    assert (shape.host_delay_ns, shape.fabric_delay_ns, shape.jitter_ns) == (10**6, 10**6, 2000)
    assert shape.buffer_bytes == 1 << 20
    assert (shape.ecn_low_bytes, shape.ecn_high_bytes, shape.trim) == (64 << 10, None, False)
    capsys.readouterr()
    assert typed("fail", *named, "plane:1", "--delay", "1ms", "--rate", "50mbit") == 0
    assert capsys.readouterr().out == "plane:1 fails: delay +1000 us, rate 50 Mbit/s\n"
    assert typed("fail", *named, "plane:1", "--loss", "5%") == 0
    assert capsys.readouterr().out == (
        "plane:1 fails: loss 5.00%; no longer: delay +1000 us, rate 50 Mbit/s\n"
    )
    assert typed("fail", *named, "t1:1.0") == 0
    ping = ("ping", "-6", "-c", "1", "-W", "1", str(Addresses().on_path(1, 1, 0)))
    assert execute("exec", *named, "h0", "--", *ping).returncode == 1
    capsys.readouterr()
    bed = Testbed.existing(bed_name)
    until(lambda: bed.links()["t1:1.0>t0:1.1"]["lost"])  # the emulator may be later than the ping
    assert typed("status", *named) == 0
    shown = capsys.readouterr().out
    assert "500 Mbit/s per link, MTU 9000, emulated" in shown
    (lossy,) = (line for line in shown.splitlines() if line.startswith("t1:1.0>t0:1.1 "))
    assert lossy.split()[-5:] == ["1", "0", "1", "0", "0"]
    assert "0 overloaded" in shown and "too slow" not in shown
    assert typed("status", *named, "--json") == 0
    told = printed("testbed status", capsys.readouterr().out)
    assert told["fabric"] == "emulated" and told["counters"]["lost_packets"] == 1
    assert told["links"]["t1:1.0>t0:1.1"]["lost_packets"] == 1


@pytest.mark.slow
def test_up__emulated_ends_with_the_shell_of_an_ordinary_user(tmp_path: Path) -> None:
    """Without `down`, the emulator does not keep the namespace alive."""
    steps = f"'{sys.executable}' -m mrc testbed up --fabric emulated --planes 1 --json"
    show = "cat /run/mrc/lab/fabric.log; echo pid $(readlink /proc/self/ns/user)"
    argv = rootless.command(["sh", "-e", "-c", f"{steps} > /dev/null; {show}"])
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    namespace = done.stdout.split("pid ")[1].strip()
    while namespace in user_namespaces():
        os.sched_yield()


def user_namespaces() -> set[str]:
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it ended in the meantime
            found.add(os.readlink(f"/proc/{pid}/ns/user"))
    return found


def test_rsh__takes_options_of_ssh_that_launchers_pass(name: str) -> None:
    options = ("-x", "-q", "-n", "-o", "StrictHostKeyChecking=no", "-p", "22")
    done = execute("rsh", "--name", name, *options, "h1", "uname -n;", "getent hosts h0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "h1"
    assert done.stdout.split()[2] == "h0"


# ---- Captures ------------------------------------------------------------------------------------


PORT = 4791
UDP_SEGMENT, SOL_UDP = 103, 17


class Capturing:
    """A running capture that writes to its standard output."""

    def __init__(self, bed: Testbed, *words: str) -> None:
        words = ("--name", bed.name, "capture", *words)
        self.process = begun(*words, stderr=subprocess.PIPE, text=False)
        assert self.process.stderr is not None
        self.where = self.process.stderr.readline().decode().split(" at ")[1].split()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def processor_seconds(self) -> float:
        """That it has used so far."""
        user, system = Path(f"/proc/{self.process.pid}/stat").read_text().split()[13:15]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def packets(self) -> list[Packet]:
        """Ends it; returns the captured datagrams."""
        assert self.process.stdout is not None
        reader: Any = PcapReader  # its types lack open files
        with self.process, reader(self.process.stdout) as captured:
            return [packet for packet in captured if UDP in packet and packet[UDP].dport == PORT]


def send_burst(bed: Testbed) -> list[bytes]:
    """Sends five datagrams in one message, the last one shorter; waits until all have arrived."""
    payload = os.urandom(4500)
    with udp_socket(bed, "h1") as rx, udp_socket(bed, "h0") as tx:
        rx.bind(("::", PORT))
        rx.settimeout(PATIENCE)
        tx.setsockopt(SOL_UDP, UDP_SEGMENT, 1000)
        tx.sendto(payload, (str(Addresses().on_path(1, 1, 0)), PORT))
        burst = [payload[start : start + 1000] for start in range(0, len(payload), 1000)]
        assert sorted(rx.recv(65536) for _ in burst) == sorted(burst)
    return burst


def check_packets_of_a_burst(bed: Testbed, where: str, interfaces: list[str]) -> None:
    """Each has its own headers and a correct checksum."""
    capturing = Capturing(bed, where, "-")
    assert capturing.where == interfaces
    sent = send_burst(bed)
    capturing.process.send_signal(signal.SIGINT)  # no count: the kernel also sends, as it likes
    packets = capturing.packets()
    assert [bytes(packet[UDP].payload) for packet in packets] == sent
    for packet in packets:
        again = packet.copy()
        del again[UDP].chksum
        assert bytes(again) == bytes(packet)
    assert capturing.process.returncode == 0


splits_bursts = pytest.mark.skipif(
    not capture.splits_bursts(), reason="Linux 6.2 shows the packets of a burst one by one"
)


@splits_bursts
@pytest.mark.parametrize(
    ("where", "interface"), [("link:h1.1", "h1:p1"), ("uplink:1.0.0", "t0-1-0:t1-0")]
)
def test_capture__has_the_packets_of_a_burst(bed: Testbed, where: str, interface: str) -> None:
    check_packets_of_a_burst(bed, where, [interface])


@splits_bursts
def test_capture__in_a_switch_writes_each_packet_twice(bed: Testbed) -> None:
    with Capturing(bed, "t1:1.0", "-") as capturing:
        assert capturing.where == ["t1-1-0:t0-0", "t1-1-0:t0-1"]
        sent, captured = send_burst(bed), b""
        assert capturing.process.stdout is not None
        while any(captured.count(each) < 2 for each in sent):
            captured += os.read(capturing.process.stdout.fileno(), 1 << 16)
    assert [captured.count(each) for each in sent] == [2] * 5


@splits_bursts
def test_capture__begins_when_all_interfaces_are_captured(
    bed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first and the last, packets of only some interfaces are captured."""
    early: list[bytes] = []
    late: list[bytes] = []

    class Ring(capture.Ring):
        def __init__(self, namespace: str, interface: str) -> None:
            if interface == "t0-1":
                early.extend(send_burst(bed))
            super().__init__(namespace, interface)

    monkeypatch.setattr(capture, "Ring", Ring)
    with (tmp_path / "a.pcap").open("wb") as file:
        wanted = capture.Capture(file, 1 << 16, None)
        where = capture.interfaces(bed.plan, "t1:1.0")
        wanted.run(bed.plan, where, lambda: late.extend(send_burst(bed)), lambda: bool(late))
    captured = (tmp_path / "a.pcap").read_bytes()
    assert [captured.count(each) for each in early] == [0] * 5
    assert [captured.count(each) for each in late] == [2] * 5


@splits_bursts
def test_capture__in_an_emulated_fabric(bed_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Testbed(bed_name, planes=1, t1=1, fabric=Fabric.EMULATED) as bed:
        check_packets_of_a_burst(bed, "h0", ["h0:p1"])
        assert main(["testbed", "capture", "t1:1.0", "x.pcap", "--name", bed_name]) == 2
        assert "are one process" in capsys.readouterr().err


def test_capture__a_burst_is_one_packet_before_6_2(
    bed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "splits_bursts", lambda: False)
    begun, over = threading.Event(), threading.Event()
    with (tmp_path / "a.pcap").open("wb") as file:
        wanted = capture.Capture(file, 1 << 16, None)
        where = capture.interfaces(bed.plan, "link:h1.1")
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(wanted.run, bed.plan, where, begun.set, over.is_set)
            begun.wait()
            sent = b"".join(send_burst(bed))
            over.set()
            taken.result()
    with PcapReader(f"{tmp_path}/a.pcap") as reader:
        bursts = [bytes(packet[UDP].payload) for packet in reader if UDP in packet]
    assert bursts == [sent]


@splits_bursts
def test_capture__ends_after_a_number_of_packets(bed: Testbed, tmp_path: Path) -> None:
    words = ("--count", "3", "--snaplen", "120")
    with Capturing(bed, "h1", f"{tmp_path}/a.pcap", *words) as capturing:
        send_burst(bed)
        assert capturing.process.wait(PATIENCE) == 0
    with PcapReader(f"{tmp_path}/a.pcap") as reader:
        assert [len(packet) for packet in reader] == [120] * 3


def test_capture__counts_in_a_file(
    bed: Testbed, tmp_path: os.PathLike[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("capture", "plane:1", f"{tmp_path}/a.pcap", "--seconds", "0.2", "--json")
    assert main(["testbed", "--name", bed.name, *words]) == 0
    shown = capsys.readouterr()
    told = printed("testbed capture", shown.out)
    assert told["interfaces"] == ["h0:p1", "h1:p1"] and told["dropped_packets"] == 0
    assert "packets, " in shown.err
    with PcapReader(f"{tmp_path}/a.pcap") as reader:
        assert len(list(reader)) == told["packets"]


def test_capture__ends_with_its_reader(bed: Testbed) -> None:
    """Also when there are no packets to write."""
    with Capturing(bed, "h1", "-") as capturing:
        assert capturing.process.stdout is not None
        capturing.process.stdout.close()
        assert capturing.process.wait(PATIENCE) == 0


def test_capture__ends_with_its_bed(bed_name: str, tmp_path: Path) -> None:
    with Testbed(bed_name, planes=1, t1=1) as bed:
        capturing = Capturing(bed, "h1", f"{tmp_path}/a.pcap")
    with capturing:
        _, said = capturing.process.communicate(timeout=PATIENCE)
        assert capturing.process.returncode == 1
        assert said.decode().endswith("h1:p1 is gone: the test bed was taken down\n")


@splits_bursts
def test_capture__of_a_link_that_is_down_for_a_while(bed: Testbed) -> None:
    """Neither ends nor spins while the link is down."""
    with Capturing(bed, "h1", "-") as capturing:
        bed.fail("link:h1.1", Mode.DOWN)
        before = capturing.processor_seconds()
        time.sleep(1)
        assert capturing.processor_seconds() - before < 0.5
        bed.heal("all")
        sent = send_burst(bed)
        capturing.process.send_signal(signal.SIGINT)
        assert [bytes(packet[UDP].payload) for packet in capturing.packets()] == sent


@pytest.mark.default
@splits_bursts
@needs_tshark
@pytest.mark.parametrize(
    "sealed", [pytest.param(False, marks=pytest.mark.slow), True], ids=["plain", "sealed"]
)
def test_capture__of_a_transfer_as_mrc_dissect_and_tshark_show_it(
    bed: Testbed, hosts: Hosts, tmp_path: Path, sealed: bool
) -> None:
    secret = tmp_path / "secret"
    assert main(["key", "--secret", str(secret)]) == 0
    (tmp_path / "a").write_bytes(bytes(1 << 20))
    (tmp_path / "inbox").mkdir()
    trust = ("--secret", str(secret)) if sealed else ("--insecure",)
    receiver = hosts.recv(tmp_path / "inbox", "--once", *trust)
    with Capturing(bed, "h1", f"{tmp_path}/a.pcap") as capturing:
        hosts.send(tmp_path / "a", *trust).ends(0)
        receiver.ends(0)
        capturing.process.send_signal(signal.SIGINT)
        capturing.process.communicate()

    argv = [sys.executable, "-m", "mrc", "dissect", "--json", f"{tmp_path}/a.pcap"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    shown = [printed("dissect", line) for line in done.stdout.splitlines()]
    assert {"WRITE_MIDDLE", "SACK", "ENDPOINT_REQUEST"} <= {each["type"] for each in shown}
    assert False not in {each["icrc_is_right"] for each in shown}
    assert any("SEAL" in each["headers"] for each in shown) is sealed
    of_file = [each for each in shown if each["headers"].get("RETH", {}).get("dma_bytes", 0) > 9000]
    assert sum(each["payload_bytes"] for each in of_file) >= 1 << 20
    assert {each["carrier"] is not None for each in shown} == {True}

    names = ("mrc.opcode", "mrc.psn", "mrc.ev", "mrc.payload_bytes", "mrc.carrier")
    options = [option for name in names for option in ("-e", name)]
    argv = ["-X", f"lua_script:{dissect_cli.LUA}", "-r", f"{tmp_path}/a.pcap", "-Y", "mrc"]
    done = tshark(*argv, "-T", "fields", *options)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [[*(int(cell, 0) for cell in row[:4]), row[4]] for row in rows] == [
        [each["headers"]["BTH"]["opcode"], each["headers"]["BTH"]["psn"], each["ev"],
         each["payload_bytes"], each["carrier"]]
        for each in shown
    ]  # fmt: skip


@pytest.mark.default
@pytest.mark.parametrize(
    ("shell", "where", "command", "there"),
    [
        ("/bin/sh", "h1", "cat $MRC_CONFIG", 'host = "h1"'),
        ("/bin/bash", "h1", "cat $MRC_CONFIG", 'host = "h1"'),
        ("/bin/bash", "t0:1.1", "ip -color=never -6 route", "dev h1"),
    ],
)
def test_shell__is_in_the_host_and_says_so(
    bed: Testbed, shell: str, where: str, command: str, there: str
) -> None:
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "mrc", "testbed", "shell", where, "--name", bed.name]
    env = os.environ | {"SHELL": shell, "HOME": "/nowhere"}
    process = subprocess.Popen(
        argv, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    os.write(ours, f"{command}; exit 7\n".encode())
    shown = b""
    with suppress(OSError):  # the last process at the other end has exited
        while chunk := os.read(ours, 4096):
            shown += chunk
    os.close(ours)
    assert process.wait(PATIENCE) == 7
    assert f"({where}@{bed.name})".encode() in shown
    assert there.encode() in shown
