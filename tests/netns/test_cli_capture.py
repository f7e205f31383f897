# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed capture` and `shell` as a user types them.

h0 -- t0:1.0 -- t1:1.0 -- t0:1.1 -- h1
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pytest
from netns.processes import Hosts
from printed import printed
from processes import needs_tshark, tshark
from scapy.layers.inet import UDP
from scapy.packet import Packet
from scapy.utils import PcapReader
from slowness import PATIENCE

from mrc.cli.main import main
from mrc.dissect import cli as dissect_cli
from mrc.fabric.topology import Addresses
from mrc.testbed import capture
from mrc.testbed.bed import Testbed
from mrc.testbed.faults import Mode
from mrc.testbed.shape import Fabric

from .conftest import fresh_name, udp_socket

PORT = 4791
UDP_SEGMENT, SOL_UDP = 103, 17


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    with Testbed(fresh_name(), planes=1, t1=1) as bed:
        yield bed


class Capturing:
    """A running capture that writes to its standard output."""

    def __init__(self, bed: Testbed, *words: str) -> None:
        argv = [sys.executable, "-m", "mrc", "testbed", "--name", bed.name, "capture", *words]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(argv, stdout=pipe, stderr=pipe)
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
def test_capture__ends_in_order_at_a_signal(bed: Testbed) -> None:
    capturing = Capturing(bed, "h1", "-", "--snaplen", "120")
    send_burst(bed)
    capturing.process.send_signal(signal.SIGINT)
    packets = capturing.packets()
    assert len(packets) == 5 and {len(packet) for packet in packets} == {120}
    assert capturing.process.returncode == 0


@splits_bursts
def test_capture__ends_after_a_number_of_packets(bed: Testbed, tmp_path: Path) -> None:
    with Capturing(bed, "h1", f"{tmp_path}/a.pcap", "--count", "3") as capturing:
        send_burst(bed)
        assert capturing.process.wait(PATIENCE) == 0
    with PcapReader(f"{tmp_path}/a.pcap") as reader:
        assert len(list(reader)) == 3


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


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("capture", "h7", "x.pcap"), "no host h7 in test bed"),
        (("capture", "switch", "x.pcap"), "nor a host"),
        (("capture", "h0", "x.pcap", "--count", "0"), "is not a number from 1 to"),
        (("capture", "h0", "-", "--json"), "excludes --json"),
        (("shell", "h7"), "no host h7"),
        (("shell", "t0:9.0"), "no plane 9"),
    ],
)
def test_capture__wrong_use_is_one_line(
    bed: Testbed, words: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["testbed", "--name", bed.name, *words]) == 2
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1


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
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # the last process at the other end has exited
        pass
    os.close(ours)
    assert process.wait(PATIENCE) == 7
    assert f"({where}@{bed.name})".encode() in shown
    assert there.encode() in shown
