# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed` as a user types it.

h0 -- t0:1.0 -- t1:1.0 -- t0:1.1 -- h1
"""

from __future__ import annotations

import csv
import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import walls
from printed import printed
from processes import terminal
from slowness import PATIENCE

from mrc.cli.main import main
from mrc.fabric.faults import LinkChange
from mrc.fabric.topology import Addresses
from mrc.linux import netns, system
from mrc.testbed import bed, rootless, state
from mrc.testbed.bed import Testbed

from .conftest import fresh_name, needs_real_root

SMALL = ("--planes", "1", "--t1", "1")


@pytest.fixture(scope="module")
def name() -> Iterator[str]:
    name = fresh_name()
    with Testbed(name, planes=1, t1=1):
        yield name


@pytest.fixture(autouse=True)
def healed(name: str) -> Iterator[None]:
    yield
    Testbed.existing(name).heal("all")


def typed(*words: str) -> int:
    return main(["testbed", *words])


def execute(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs `mrc testbed` in a new process, because `exec` replaces its process."""
    argv = [sys.executable, "-m", "mrc", "testbed", *words]
    root = Path(__file__).parents[2]
    return subprocess.run(argv, check=False, capture_output=True, text=True, cwd=root)


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

    assert told("status", code=1) == {"schema": 1, "name": bed_name, "state": "down"}
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
    assert typed("status", "--name", name, "--csv", "--watch") == 2
    assert "--csv: not with --watch" in capsys.readouterr().err


def test_status__watches_until_the_test_bed_is_down(bed_name: str) -> None:
    argv = [sys.executable, "-m", "mrc", "testbed", "--name", bed_name]
    subprocess.run([*argv, "up", *SMALL], check=True, stdout=subprocess.DEVNULL)
    watch = [*argv, "status", "--watch", "--json", "--interval", "20ms"]
    with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        for _ in range(3):
            status = printed("testbed status", watching.stdout.readline())
            assert status["links"]["h0>t0:1.0"]["rate_bits_per_second"] == 500_000_000
        subprocess.run([*argv, "down"], check=True, stdout=subprocess.DEVNULL)
        *_, last = watching.stdout
        assert printed("testbed status", last)["state"] == "down"
    assert watching.returncode == 1


def test_status__watch_as_text_names_other_rates(bed_name: str) -> None:
    slow = LinkChange("link:h0.1", rate_bps=10_000_000)
    with Testbed(bed_name, planes=1, t1=1, links=(slow,)):
        argv = [sys.executable, "-m", "mrc", "testbed", "status", "--name", bed_name]
        watch = [*argv, "--watch", "--interval", "20ms"]
        with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as watching:
            assert watching.stdout is not None
            lines = [next(watching.stdout) for _ in range(20)]
            watching.send_signal(signal.SIGINT)
            watching.communicate(timeout=PATIENCE)
            assert watching.returncode == 130
    assert lines.count("link:h0.1 has 10 Mbit/s\n") > 1
    assert not any("fd00:" in line for line in lines)


def test_status__watch_scrolls_on_a_terminal_of_24_rows(bed_name: str) -> None:
    with Testbed(bed_name, hosts=4, planes=4, t1=2), terminal() as seat:
        for plane in range(1, 5):
            Testbed.existing(bed_name).fail(f"t1:{plane}.0")
        watch = ("testbed", "status", "--watch", "--interval", "20ms", "--name", bed_name)
        with seat.running(sys.executable, "-m", "mrc", *watch, TERM="xterm") as watching:
            assert "t1:4.0 fails" not in seat.until("lines 1-23 of ")
            seat.press("\x1b[F")
            seat.until("t1:4.0 fails: silent")
            seat.press("q")
            assert watching.wait(PATIENCE) == 0


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
    monkeypatch.setattr(bed, "_MPTCP_ENABLED", tmp_path / "enabled")
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
        (("fail", "plane:01"), "target 'plane:01' is not all, plane:P"),
        (("fail", "plane:1", "--delay", "0ms"), "the fault has no effect"),
        (("fail", "plane:1", "--mtu", "0"), "mtu is 0, not in"),
        (("fail", "plane:1", "--rate", "0"), "'0' is not a rate of at least 1kbit"),
        (("fail", "plane:1", "--rate", "none"), "'none' is not a rate of at least 1kbit"),
        (("fail", "plane:1", "--mtu", "1000"), "mtu is 1000, not in 1280..65536"),
        (("heal", "t0:1.9"), "no T0 9"),
        (("up", "--planes", "0"), "planes is 0"),
        (("up", "--rate", "quick"), "rate 'quick' is not like 500mbit"),
        (("down", "--name", "a/b"), "name 'a/b'"),
        (("exec", "h0"), "no command: "),
        (("exec", "h0", "--"), "no command: "),
        (("exec", "h0", "-b3"), "unrecognized option -b3; a command comes after --"),
        (("exec", "h0", "--user"), "--user: expected one argument"),
        (("exec", "h9", "--", "true"), "no host h9"),
        (("exec", "h0", "--schedule"), "--schedule: expected one argument"),
        (("run", "x.toml", "--until", "soon"), "is not a time"),
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
    argv = [sys.executable, "-m", "mrc", "testbed", "run", "--name", name, faults]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True) as process:
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
    command = [sys.executable, "-m", "mrc", "testbed", *words, "read _; echo $MRC_CONFIG; exit 5"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as running:
        assert running.stdin is not None and running.stderr is not None
        assert any("t1:1.0 fails: silent" in line for line in running.stderr)
        out, _ = running.communicate("go on\n")
    assert (running.returncode, out) == (5, f"{state.config_path(name, 'h0')}\n")
    assert Testbed.existing(name).faults() == {}


def test_exec__with_a_schedule_is_killed(name: str, faults: str) -> None:
    """The command in the host does not outlive it."""
    words = ("exec", "h0", "--name", name, "--schedule", faults, "--", "sh", "-c")
    command = [sys.executable, "-m", "mrc", "testbed", *words, "echo $$; exec sleep 100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        end = os.pidfd_open(int(running.stdout.readline()))
        running.kill()
        assert select.select([end], [], [], PATIENCE)[0]
        os.close(end)
    assert typed("heal", "all", "--name", name) == 0


def test_fail__needs_a_test_bed(bed_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("fail", "plane:1", "--name", bed_name) == 1
    assert f"not up: mrc testbed up --name {bed_name}\n" in capsys.readouterr().err


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
    command = ("--", "sh", "-c", "echo $MRC_CONFIG -- $0", "--name")
    for words in (
        ("--name", name, "exec", "h1", *command),
        ("exec", "--name", name, "h1", *command),
        ("exec", "h1", "--name", name, *command),
        ("exec", "h1", f"--name={name}", *command),
    ):
        done = execute(*words)
        assert done.stdout == f"{state.config_path(name, 'h1')} -- --name\n", done.stderr


@needs_real_root
def test_exec__as_a_user(name: str) -> None:
    for words in (("--user", "nobody", "h1"), ("h1", "--user", "nobody")):
        done = execute("--name", name, "exec", *words, "--", "id", "-un")
        assert done.stdout == "nobody\n", done.stderr


def test_exec__passes_the_exit_code(name: str) -> None:
    assert execute("exec", "h0", "--name", name, "--", "sh", "-c", "exit 42").returncode == 42


def test_exec__no_such_command(name: str) -> None:
    done = execute("exec", "h0", "--name", name, "--", "mrc-nothing")
    assert (done.returncode, done.stderr) == (
        127,
        "mrc testbed exec: mrc-nothing: command not found\n",
    )


def test_exec__finds_mrc_itself(name: str) -> None:
    """Even if the virtual environment of mrc is not activated."""
    argv, env = Testbed.existing(name).host_command("h0", ["python3", "-c", "import mrc"])
    assert env["PATH"].split(":")[-1] == str(Path(sys.executable).parent)
    assert argv[:3] == [*system.require("ip"), "netns", "exec"]


@pytest.mark.slow
def test_command__is_a_whole_test_bed_for_ordinary_users(bed_name: str) -> None:
    """Method: root of a user namespace has privileges only over objects created in it."""
    mrc = f"{shlex.quote(sys.executable)} -m mrc testbed --name {bed_name}"
    steps = [
        f"{mrc} up --planes 1 --t1 1",
        f"{mrc} fail plane:1",
        f"{mrc} heal all",
        f"{mrc} exec h0 -- ping -c 1 -q fd00:c::2",
        f"{mrc} down",
    ]
    done = subprocess.run(
        rootless.command(["sh", "-e", "-c", "\n".join(steps)]),
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert "1 received" in done.stdout
    assert not [each for each in netns.names() if bed_name in each]


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


def test_up__a_kernel_fabric_has_no_queues_to_set(
    bed_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed("up", "--name", bed_name, *SMALL, "--ecn-low", "1MiB") == 2
    assert "a kernel fabric cannot mark or trim: use --fabric emulated" in capsys.readouterr().err


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
        try:
            found.add(os.readlink(f"/proc/{pid}/ns/user"))
        except OSError:  # it ended in the meantime
            continue
    return found


def test_rsh__takes_options_of_ssh_that_launchers_pass(name: str) -> None:
    options = ("-x", "-q", "-n", "-o", "StrictHostKeyChecking=no", "-p", "22")
    done = execute("rsh", "--name", name, *options, "h1", "uname -n;", "getent hosts h0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "h1"
    assert done.stdout.split()[2] == "h0"
