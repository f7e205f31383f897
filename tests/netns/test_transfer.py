# SPDX-License-Identifier: Apache-2.0
"""`mrc send` and `mrc recv` as processes in two hosts of a test bed, with and without faults.

h0 --- plane 1 (T0, 2 x T1, T0) --- h1      100 Mbit/s each; the OOB exchange runs over a
 |---- plane 2 ---------------------|       management network that no fault touches
 |---- plane 3 ---------------------|
 '---- plane 4 ---------------------'
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from netns.plain import without_route
from netns.processes import Hosts
from printed import printed
from slowness import until

from mrc.linux import netns
from mrc.mailbox import KEEPALIVE_SECONDS
from mrc.testbed.bed import Testbed
from mrc.testbed.shape import Fabric
from mrc.transfer.limits import part_name, record_name

from .conftest import fresh_name, needs_real_root

pytestmark = pytest.mark.usefixtures("healed")

PLANES = 4
MTU = 8844  # payload bytes at an interface MTU of 9000
BIG = (64 << 20) + 13
MIDDLE = 24 << 20
LONG = 96 << 20
BEGUN = 12 << 20  # the receiver has stored a chunk
SLOWLY = ("--rate", "100mbit")  # 8 s for LONG: a test that ends it in the middle has time
STOPS = [
    pytest.param(signal.SIGINT, 130),
    pytest.param(signal.SIGTERM, 143, marks=[pytest.mark.slow]),
]
GIVE_UP_SECONDS = 25  # 9.0 s of configured retries, more after long queues


@pytest.fixture(scope="module")
def bed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    shape = getattr(request, "param", {"planes": PLANES, "t1": 2, "rate": "100mbit"})
    with Testbed(fresh_name(), **shape) as bed:
        yield bed


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users may enter; they cannot enter pytest's own folders."""
    with tempfile.TemporaryDirectory(prefix="mrc-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def make(tmp_path: Path, name: str, size: int, seed: int = 1) -> Path:
    path = tmp_path / name
    path.write_bytes(random.Random(seed).randbytes(size))
    return path


def same(left: Path, right: Path) -> bool:
    return left.read_bytes() == right.read_bytes()


PART = part_name("a")
KEPT = [PART, record_name(PART)]  # of the file `a`, when its transfer was interrupted


def names(inbox: Path) -> list[str]:
    return sorted(os.listdir(inbox))


# ---- Without faults -------------------------------------------------------------------------


@pytest.mark.slow
def test_send__every_size(hosts: Hosts, tmp_path: Path, inbox: Path) -> None:
    sizes = [0, 1, MTU - 1, MTU, MTU + 1, BIG]
    files = [make(tmp_path, f"file{size}", size, size) for size in sizes]
    receiver = hosts.recv(inbox, "--once", "--json")
    sent = printed("send", hosts.send("--json", *files).ends(0))
    received = printed("recv", receiver.ends(0))
    assert names(inbox) == sorted(path.name for path in files)
    assert all(same(path, inbox / path.name) for path in files)
    _check_result(sent, "sender", sizes, files)
    _check_result(received, "receiver", sizes, [inbox / path.name for path in files])
    digests = [[file["digest"] for file in result["files"]] for result in (sent, received)]
    assert digests[0] == digests[1]
    assert sent["sent_packets"] >= BIG // MTU
    assert sent["qps"] == received["qps"] == 1, "a short round trip"
    moved = [plane["sent_bytes"] for plane in sent["planes"]]
    assert min(moved) > 0.8 * max(moved), "equal shares per plane"
    arrived = [plane["received_bytes"] for plane in received["planes"]]
    assert sum(sizes) <= sum(arrived) < 1.01 * sum(sizes), "each byte once, plus some messages"
    assert min(arrived) > 0.8 * max(arrived)


def _check_result(result: dict[str, Any], role: str, sizes: list[int], paths: list[Path]) -> None:
    assert result["schema"] == 1
    assert result["role"] == role
    assert [file["bytes"] for file in result["files"]] == sizes
    assert [file["path"] for file in result["files"]] == list(map(str, paths))
    assert [file["name"] for file in result["files"]] == [path.name for path in paths]
    assert result["goodput_bits_per_second"] == pytest.approx(sum(sizes) * 8 / result["seconds"])
    assert result["path_mtu_bytes"] == MTU
    assert [plane["plane"] for plane in result["planes"]] == [1, 2, 3, 4]
    assert len(result["evs"]) == 8
    assert {"tcp_port", "udp_port", "mpr", "retransmitted_packets"} <= result.keys()


@needs_real_root
def test_send__as_an_ordinary_user(hosts: Hosts, public_folder: Path, inbox: Path) -> None:
    file = make(public_folder, "a", MIDDLE)
    receiver = hosts.recv(inbox, "--once")
    output = hosts.send(file, user="nobody").ends(0)
    assert "24 MiB" in output and "xxh3_128:" in output
    receiver.ends(0)
    assert same(file, inbox / "a")


@pytest.mark.default
def test_recv__serves_several_senders_at_once_until_interrupted(
    hosts: Hosts, tmp_path: Path, inbox: Path
) -> None:
    files = [make(tmp_path, f"file{n}", MIDDLE // 2, n) for n in range(3)]
    receiver = hosts.recv(inbox)
    for sender in [hosts.send(file) for file in files]:
        sender.ends(0)
    hosts.send(make(tmp_path, "later", 5)).ends(0)
    receiver.process.send_signal(signal.SIGINT)
    output = receiver.ends(130)
    assert len(output.splitlines()) == 4
    assert all(same(file, inbox / file.name) for file in files)


@pytest.mark.slow
def test_recv__existing_file_only_with_overwrite(hosts: Hosts, tmp_path: Path, inbox: Path) -> None:
    file = make(tmp_path, "a", MTU)
    (inbox / "a").write_bytes(b"old")
    receiver = hosts.recv(inbox, "--once")
    sender = hosts.send(file)
    sender.ends(6)
    assert "not copied: h1: a: exists" in sender.complaint()
    receiver.process.send_signal(signal.SIGINT)
    receiver.ends(130)
    assert "a: exists" in receiver.lines[1], "a peer that sent nothing does not count for --once"
    assert (inbox / "a").read_bytes() == b"old" and names(inbox) == ["a"]
    receiver = hosts.recv(inbox, "--once", "--overwrite")
    hosts.send(file).ends(0)
    receiver.ends(0)
    assert same(file, inbox / "a")


def test_paths__shows_every_ev(hosts: Hosts, inbox: Path) -> None:
    receiver = hosts.recv(inbox, "--once")
    shown = printed("paths", hosts.start("h0", "paths", "h1", "--json").ends(0))
    assert [(ev["plane"], ev["path"]) for ev in shown["evs"]] == [
        (plane, f"t1:{plane}.{t1}") for plane in range(1, 5) for t1 in range(2)
    ]
    assert shown["evs"][3]["usids"] == ["0101", "0201", "e000"]
    assert {ev["state"] for ev in shown["evs"]} == {"GOOD"}
    table = hosts.start("h0", "paths", "h1").ends(0)
    assert len(table.splitlines()) == 10 and "0101 0201 e000" in table
    assert f"h1: 4 of 4 planes and 8 of 8 paths are good; a packet carries {MTU} B" in table
    some = hosts.start("h0", "paths", "h1", "--json", "-B", "p2", "-B", "p4").ends(0)
    assert {ev["plane"] for ev in printed("paths", some)["evs"]} == {2, 4}
    none = hosts.start("h0", "paths", "h1", "-B", "p9")
    none.ends(1)
    assert "p9 is no port of the host configuration, which has p1" in none.complaint()
    assert receiver.process.poll() is None, "a query of the paths does not count for --once"


def test_paths__a_silent_plane_is_not_good(hosts: Hosts, bed: Testbed, inbox: Path) -> None:
    hosts.recv(inbox)
    bed.fail("plane:2")
    looking = hosts.start("h0", "paths", "h1", "--json")
    shown = printed("paths", looking.ends(0))
    assert looking.complaint() == "mrc paths: plane 2 (p2) to h1 does not answer"
    good = {ev["plane"] for ev in shown["evs"] if ev["state"] == "GOOD"}
    assert good == {1, 3, 4}


# ---- Faults of the fabric -------------------------------------------------------------------


def fail_all(bed: Testbed, **fault: Any) -> None:
    """Every plane fails."""
    bed.fail([f"plane:{plane}" for plane in bed.shape.plane_numbers()], **fault)


@pytest.mark.default
@pytest.mark.parametrize(
    ("fault", "lost"),
    [
        ({"target": "plane:2"}, 2),
        pytest.param({"target": "plane:2", "mode": "down"}, 2, marks=[pytest.mark.slow]),
        pytest.param({"target": "plane:2", "loss": 0.2}, None, marks=[pytest.mark.slow]),
        pytest.param({"target": "t1:3.0"}, None, marks=[pytest.mark.slow]),
        pytest.param({"target": "link:h1.1", "mode": "down"}, 1, marks=[pytest.mark.slow]),
    ],
    ids=["silent", "down", "lossy", "t1", "link"],
)
def test_send__a_fault_in_the_middle(
    hosts: Hosts, bed: Testbed, tmp_path: Path, inbox: Path, fault: dict[str, Any], lost: int | None
) -> None:
    file, fed = make(tmp_path, "a", MIDDLE), tmp_path / "fed"
    receiver = hosts.recv(inbox, "--once")
    with hosts.send_fed(fed, "--rate", "100mbit", "--json", file) as sender:
        receiver.until_received(MIDDLE // 8)
        bed.fail(**fault)
        if lost is not None:
            sender.until_suspended(lost)
        receiver.until_received(receiver.received() + MIDDLE // 4)
        bed.heal()
    sent = printed("send", sender.ends(0))
    receiver.ends(0)
    assert same(file, inbox / "a") and same(fed, inbox / "stdin")
    if "mode" not in fault:  # who sees his port go down may lose nothing
        assert sent["retransmitted_packets"] > 0
    if lost is not None:
        assert lost in {each["plane"] for each in sent["outages"]}, "others may stall, too"
        (told,) = sender.lines
        assert f"plane {lost} was lost " in told, "at, or for, by how long it took"


@pytest.mark.slow
def test_send__a_missing_route_costs_one_path(
    hosts: Hosts, bed: Testbed, tmp_path: Path, inbox: Path
) -> None:
    file = make(tmp_path, "a", LONG // 2)
    receiver = hosts.recv(inbox, "--once")
    sender = hosts.send("--json", file)
    receiver.until_received(BEGUN // 2)
    with without_route(bed.plan.nodes["h0"].namespace, "fd00:a:1::2:1"):
        sent = printed("send", sender.ends(0))
    receiver.ends(0)
    assert same(file, inbox / "a")
    bad = [ev["path"] for ev in sent["evs"] if ev["state"] != "GOOD"]
    assert bad == ["t1:2.1"]
    moved = [plane["sent_bytes"] for plane in sent["planes"]]
    assert min(moved) > 0.8 * max(moved), "the plane's other path carries its share"


@pytest.mark.slow
def test_send__one_percent_lost_everywhere(
    hosts: Hosts, bed: Testbed, tmp_path: Path, inbox: Path
) -> None:
    file = make(tmp_path, "a", MIDDLE)
    fail_all(bed, loss=0.01)
    receiver = hosts.recv(inbox, "--once")
    hosts.send(file).ends(0)
    receiver.ends(0)
    assert same(file, inbox / "a")


@pytest.mark.slow
def test_send__all_planes_silent(hosts: Hosts, bed: Testbed, tmp_path: Path, inbox: Path) -> None:
    receiver = hosts.recv(inbox, "--once")
    sender = hosts.send(*SLOWLY, make(tmp_path, "a", LONG), "--retry", "0")
    receiver.until_received(BEGUN)
    fail_all(bed)
    for end in (sender, receiver):  # who finds it out first tells the other by TCP
        end.ends(4, within=GIVE_UP_SECONDS)
        assert re.search("all paths to h[01] are lost", end.complaint())
    assert names(inbox) == KEPT


@pytest.mark.slow
def test_recv__sender_falls_silent(hosts: Hosts, tmp_path: Path, inbox: Path) -> None:
    """A stopped process keeps its TCP connection: only the mailbox's keepalive detects it."""
    receiver = hosts.recv(inbox, "--once")
    sender = hosts.send(*SLOWLY, make(tmp_path, "a", LONG), "--retry", "0")
    receiver.until_received(BEGUN)
    sender.process.send_signal(signal.SIGSTOP)
    receiver.ends(4, within=2 * KEEPALIVE_SECONDS + GIVE_UP_SECONDS)
    assert "all paths to h0 are lost" in receiver.complaint()
    assert names(inbox) == KEPT


def test_send__no_plane_from_the_start(hosts: Hosts, bed: Testbed, tmp_path: Path) -> None:
    hosts.recv(tmp_path)
    fail_all(bed)
    sender = hosts.send("--timeout", "60", make(tmp_path, "a", 1))
    sender.ends(4)
    assert "answers on UDP port 4791" in sender.complaint()
    assert "TCP port 4791 of h1 answers: open both ports" in sender.complaint()


# ---- Faults of the two ends -----------------------------------------------------------------


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_recv__disk_full(hosts: Hosts, tmp_path: Path) -> None:
    file = make(tmp_path, "a", MIDDLE)
    with small_disk(tmp_path / "small", 8 << 20) as inbox:
        receiver = hosts.recv(inbox)
        sender = hosts.send(file)
        sender.ends(1)
        assert "no room for 25165824 bytes" in sender.complaint()
        assert receiver.received() < 4096, "refused before data flows"
        assert names(inbox) == []


def shrink(file: Path) -> None:
    os.truncate(file, 4096)


def rewrite(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.write(b"x")


@pytest.mark.parametrize("change", [shrink, pytest.param(rewrite, marks=pytest.mark.slow)])
def test_send__source_changes_in_the_middle(
    hosts: Hosts, tmp_path: Path, inbox: Path, change: Callable[[Path], None]
) -> None:
    file = make(tmp_path, "a", LONG)
    receiver = hosts.recv(inbox, "--once")
    sender = hosts.send(*SLOWLY, file)
    receiver.until_received(BEGUN)
    change(file)
    sender.ends(6)
    assert "changed while it was sent" in sender.said()[-1]
    receiver.ends(6)
    assert "not copied: h0: " in receiver.complaint()
    assert names(inbox) == KEPT


def test_recv__killed(hosts: Hosts, tmp_path: Path, inbox: Path) -> None:
    file = make(tmp_path, "a", LONG)
    receiver = hosts.recv(inbox)
    sender = hosts.send(*SLOWLY, file, "--retry", "0")
    receiver.until_received(BEGUN)
    receiver.process.kill()
    sender.ends(1)
    assert "h1 ended without closing the connection" in sender.complaint()
    assert names(inbox) == KEPT, "nothing under the final name"
    receiver = hosts.recv(inbox, "--once", "--no-resume")
    assert any("removed what was left of a" in line for line in receiver.lines)
    assert names(inbox) == []
    hosts.send(file).ends(0)
    receiver.ends(0)
    assert same(file, inbox / "a")


@pytest.mark.parametrize(
    ("signum", "code", "said"),
    [(signal.SIGKILL, -signal.SIGKILL, "h0 ended without closing the connection")]
    + [pytest.param(*stop.values, "h0", marks=stop.marks) for stop in STOPS],
)
def test_send__stopped(
    hosts: Hosts, tmp_path: Path, inbox: Path, signum: signal.Signals, code: int, said: str
) -> None:
    receiver = hosts.recv(inbox, "--once")
    sender = hosts.send(*SLOWLY, make(tmp_path, "a", LONG))
    receiver.until_received(BEGUN)
    sender.process.send_signal(signum)
    sender.ends(code)
    receiver.ends(1)
    assert said in receiver.complaint()
    assert names(inbox) == KEPT


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), STOPS)
def test_recv__stopped(
    hosts: Hosts, tmp_path: Path, inbox: Path, signum: signal.Signals, code: int
) -> None:
    receiver = hosts.recv(inbox)
    sender = hosts.send(*SLOWLY, make(tmp_path, "a", LONG))
    receiver.until_received(BEGUN)
    receiver.process.send_signal(signum)
    receiver.ends(code, within=5)
    sender.ends(1, within=5)
    assert "h1" in sender.complaint()
    assert names(inbox) == KEPT


@pytest.mark.slow
def test_recv__garbage_on_tcp_and_udp(
    hosts: Hosts, bed: Testbed, tmp_path: Path, inbox: Path
) -> None:
    """A stranger that sends garbage to both ports disturbs neither the receiver nor its sender."""
    file = make(tmp_path, "a", LONG // 2)
    receiver = hosts.recv(inbox)
    sender = hosts.send(file)
    receiver.until_received(BEGUN // 2)
    noise = random.Random(7)
    with netns.inside(bed.plan.nodes["h0"].namespace):
        udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        strangers = [socket.create_connection(("fd00:c::2", 4791), 5) for _ in range(5)]
    with udp:
        for n in range(500):
            udp.sendto(noise.randbytes(noise.randrange(1, 1400)), ("fd00:a:1::1:0", 4791 + n % 2))
    for n, stranger in enumerate(strangers):
        with stranger:
            stranger.sendall([b"", b"\x00" * 64, b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", b"{"][n])
    sender.ends(0)
    hosts.send(make(tmp_path, "b", 10)).ends(0)
    assert same(file, inbox / "a")
    assert receiver.process.poll() is None


# ---- Random faults --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 60])
@pytest.mark.timeout(1800)
def test_send__random_faults(tmp_path: Path, bed_name: str, rounds: int) -> None:
    """Test beds of 1 to 4 planes, up to three rounds each; MRC_SEED repeats a run."""
    seed = int(os.environ.get("MRC_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"MRC_SEED={seed}")
    draw = random.Random(seed)
    for n in range(0, rounds, 3):
        planes = draw.randrange(1, PLANES + 1)
        with Testbed(bed_name, planes=planes, t1=draw.randrange(1, 3), rate="200mbit") as bed:
            for each in range(n, min(n + 3, rounds)):
                _random_round(bed, tmp_path / f"round{each}", draw)


def _random_round(bed: Testbed, folder: Path, draw: random.Random) -> None:
    sizes = [0, 1, MTU - 1, MTU, MTU + 1, BIG, draw.randrange(1 << 25)]
    inbox = folder / "inbox"
    inbox.mkdir(parents=True)
    files = [
        make(folder, f"file{n}", size, draw.randrange(1 << 32))
        for n, size in enumerate(draw.sample(sizes, draw.randrange(1, 4)))
    ]
    # One plane stays without faults, or all may fail at once, but only after the QP is connected.
    spared = draw.random() < 0.5 and bed.shape.planes > 1
    faults = _random_faults(draw, range(1, bed.shape.planes + (not spared)))
    print(bed.shape.planes, "planes", [file.stat().st_size for file in files], spared, faults)
    hosts = Hosts(bed)
    try:
        receiver = hosts.recv(inbox, "--once")
        sender = hosts.send(*files)
        if not spared:
            receiver.until_received(1)
        for fault in faults:
            time.sleep(draw.uniform(0, 0.4))
            bed.fail(**fault)
            if draw.random() < 0.5:
                time.sleep(draw.uniform(0, 0.4))
                bed.heal(fault["target"])
        time.sleep(draw.uniform(0, 1))
        bed.heal()
        sender.ends(0, within=90)
        receiver.ends(0)
    finally:
        hosts.end()
    for file in files:
        assert same(file, inbox / file.name)
        file.unlink()


def _random_faults(draw: random.Random, planes: range) -> list[dict[str, Any]]:
    if draw.random() < 0.2:
        return [{"target": f"plane:{plane}", "loss": 0.01} for plane in planes]
    kinds: list[dict[str, Any]] = [{}, {"mode": "down"}, {"loss": 0.2}]
    return [{"target": f"plane:{draw.choice(planes)}", **draw.choice(kinds)} for _ in range(4)]


# ---- Lost connections ----------------------------------------------------------------------------


SIZE = 32 << 20
FEW = 2


on_few_planes = pytest.mark.parametrize(
    "bed", [{"planes": FEW, "t1": 1, "rate": "100mbit"}], indirect=True, ids=["few planes"]
)


@on_few_planes
@pytest.mark.slow
@pytest.mark.parametrize("lost", ["planes", "sender", "receiver"])
def test_send__goes_on_by_itself(
    hosts: Hosts, bed: Testbed, tmp_path: Path, inbox: Path, lost: str
) -> None:
    """Both ends wait while no plane is left, and take for the same that the other is stopped."""
    file = make(tmp_path, "a", SIZE)
    receiver = hosts.recv(inbox, "--once", "--json")
    sender = hosts.send("--json", file)
    receiver.until_received(SIZE // 4)
    if lost == "planes":
        fail_all(bed)
        sender.until_says("all paths to h1 are lost")
        bed.heal()
    else:
        still, waits = (sender, receiver) if lost == "sender" else (receiver, sender)
        os.kill(still.process.pid, signal.SIGSTOP)
        waits.until_says("are lost")
        os.kill(still.process.pid, signal.SIGCONT)
    result = printed("send", sender.ends(0))
    assert result["retries"] == 1 and result["resumed_bytes"] >= SIZE // 8
    receiver.ends(0)
    assert same(file, inbox / "a") and names(inbox) == ["a"]


@on_few_planes
@pytest.mark.slow
def test_send__a_folder_with_refused_files_over_a_lost_path(
    hosts: Hosts, bed: Testbed, tmp_path: Path
) -> None:
    """What was refused before the loss, and after it, is told at both ends; so is what was stored.

    All files are of one pack, which is lost in its middle.
    """
    inbox, top = tmp_path / "inbox", tmp_path / "top"
    for folder in (top, inbox / "top"):
        folder.mkdir(parents=True)
    (inbox / "top" / "taken").write_bytes(b"theirs")
    for name in ("-refused", "taken"):  # the first and the last of the pack
        (top / name).write_bytes(b"ours")
    data = random.Random(1).randbytes(SIZE)
    names = [f"f{n:03}" for n in range(SIZE >> 17)]
    for n, name in enumerate(names):
        (top / name).write_bytes(data[n << 17 : n + 1 << 17])
    receiver = hosts.recv(inbox, "--once", "--json")
    sender = hosts.send("--json", "--rate", "40M", top)
    until(lambda: (inbox / "top" / names[len(names) // 4]).exists(), sender.lines)
    fail_all(bed)
    sender.until_says("the connection is lost")
    bed.heal()
    sent = printed("send", sender.ends(6))
    *_, last = receiver.ends(6).splitlines()  # a line for the lost connection is before
    got = printed("recv", last)
    assert sent["retries"] == 1
    for result in (sent, got):
        assert {each["name"] for each in result["failed"]} == {"top/-refused", "top/taken"}
        assert result["failed_count"] == 2
        assert [each["name"] for each in result["files"]] == [f"top/{name}" for name in names]
        assert result["bytes"] == SIZE and result["folders"] == 1
    assert sorted(os.listdir(inbox / "top")) == [*names, "taken"]
    assert (inbox / "top" / "taken").read_bytes() == b"theirs"
    assert b"".join((inbox / "top" / name).read_bytes() for name in names) == data
    assert os.listdir(inbox) == ["top"], "no mark is left"


# ---- A long path ---------------------------------------------------------------------------------


PAYLOAD = 1344  # at an interface MTU of 1500


FAR = {"planes": 4, "t1": 2, "mtu": 1500, "rate": "200mbit", "delay_ns": 31_000_000}


@pytest.mark.parametrize("bed", [FAR | {"fabric": Fabric.EMULATED}], indirect=True, ids=["far"])
@pytest.mark.slow
def test_send__several_qps_where_the_way_is_long(hosts: Hosts, tmp_path: Path, inbox: Path) -> None:
    file = make(tmp_path, "a", 160 << 20)
    receiver = hosts.recv(inbox, "--once", "--json", "--bins")
    sent = printed("send", hosts.send("--json", file).ends(0))
    received = printed("recv", receiver.ends(0))
    assert same(file, inbox / "a")
    assert (sent["mpr"], sent["path_mtu_bytes"]) == (4096, PAYLOAD)
    assert 1 < sent["qps"] == received["qps"] <= 16
    moved = sum(plane["received_bytes"] for plane in received["planes"])
    assert 1 <= moved / (160 << 20) < 1.01, "over all QPs each byte once, plus some messages"
    recorded = sum(received["bins"]["bytes"])
    assert recorded == pytest.approx(moved, rel=0.001), "of all QPs, except some messages"
    assert len(sent["evs"]) == 8 * sent["qps"]
