# SPDX-License-Identifier: Apache-2.0
"""tools/dissect prints the packets of a capture."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import cbuild
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire.capture import CARRIER, frame, write
from wire.codec import Codec, Flow
from wire.golden import GOLDEN, V4, V6

DISSECT = cbuild.ROOT / "tools" / "dissect"
BY_NAME = {golden.name: golden for golden in GOLDEN}


def run(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DISSECT), *map(str, arguments)]
    done = subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=60)
    return subprocess.CompletedProcess(
        command, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The output for a capture of all golden packets."""
    path = tmp_path_factory.mktemp("dissect") / "golden.pcap"
    done = run(write(path, [frame(golden.packet, golden.flow) for golden in GOLDEN]))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_file__a_line_each(lines: list[str]) -> None:
    for golden, line in zip(GOLDEN, lines, strict=True):
        assert f"qp {golden.fields['dest_qpn']:06x} psn {golden.fields.get('psn', 0):06x}" in line
        assert "WRONG" not in line, golden.name
    assert not any("too short" in line or "opcode" in line for line in lines)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("write-last-retransmitted", "WRITE_LAST qp abcdef psn 000001 msn 7 va 0x7f0012345684"
         " rkey 0xdeadbeef bytes 1 of 256 ts 65535 [ack_req rtx]"),
        ("write-only-imm-padded", "WRITE_ONLY_IMM qp 000003 psn 000007 msn 12 va 0x1000"
         " rkey 0x0000002a bytes 3 of 3 rqmsn 2 imm 0xffffffff [m]"),
        ("nak-remote-access", "ACK qp 00beef psn 000004 NAK_REM_ACCESS msn 16777215"),
        ("port-status-update", "ENDPOINT_REQUEST qp 000002 psn 00beef PORT_STATUS id 0xbeef"
         " ts 512 ports 1101"),
        ("ev-probe-filled-up", "ENDPOINT_REQUEST qp 000002 psn 000002 EV_PROBE id 0x0002 ts 768"
         " filled by 16"),
        ("ev-probe-answer", "ENDPOINT_RESPONSE qp 000002 psn 000001 EV_PROBE id 0x0001 ts 768"),
        ("sack", "SACK qp 00beef psn 000010 cum 000010 for 000015 ev c001abcd"
         " bitmap 000011+8000000000000019 SKIP_ONCE ts 4660 ooo 4 rcvd 65280"),
        ("sack-of-probe", "SACK qp 00beef psn ffffff cum ffffff probe 0xfffe ev c0010000"
         " bitmap ffffc0+ffffffffffffffff ALWAYS_SKIP ts 65535 ooo 32767 rcvd 4294967040"),
        ("nack-trimmed", "NACK qp 00beef psn 000011 TRIMMED psn 000011 ev c001abcd"),
        ("probe", "PROBE qp abcdef psn 000000 id 0xfffe ts 4660"),
    ],
)  # fmt: skip
def test_file__the_line_of(lines: list[str], name: str, expected: str) -> None:
    at = list(BY_NAME).index(name)
    assert lines[at] == f"{at / 1000:.6f} fd00:a::1 > fd00:a:1::1:0 ev c001abcd {expected}"


def test_file__through_srv6_with_a_mark_and_over_ipv4(tmp_path: Path) -> None:
    golden = BY_NAME["write-only-empty"]
    frames = [
        frame(golden.packet, V6, via=CARRIER, tclass=3),
        frame(BY_NAME["write-only-ipv4"].packet, V4),
        frame(golden.packet, V4),
    ]
    lines = run(write(tmp_path / "a.pcap", frames)).stdout.splitlines()
    assert f"fd00:a::1 > fd00:a:1::1:0 via {CARRIER} ev c001abcd" in lines[0]
    assert lines[0].endswith(" [CE]")
    assert "192.0.2.1 > 198.51.100.2 ev c0020000" in lines[1]
    assert "[" not in lines[1]
    assert lines[2].endswith("[ICRC WRONG]")


def test_file__a_burst_is_taken_apart(tmp_path: Path) -> None:
    packet = BY_NAME["write-middle-timestamp"].packet
    lines = run(write(tmp_path / "a.pcap", [frame(packet * 3, V6)])).stdout.splitlines()
    assert [line.split(" ev c001abcd ")[1].split()[0] for line in lines] == ["1/3", "2/3", "3/3"]
    assert not any("WRONG" in line for line in lines)


def test_file__what_is_not_mrc(tmp_path: Path) -> None:
    other_port = frame(GOLDEN[0].packet, V6)
    other_port["UDP"].dport = 53
    frames = [other_port, frame(b"", V6), frame(b"\xca" * 15, V6), frame(bytes(40), V6)]
    frames.append(frame(BY_NAME["sack"].packet[:30], V6))
    lines = run(write(tmp_path / "a.pcap", frames)).stdout.splitlines()
    assert [line.split(" ev c001abcd ")[1] for line in lines] == [
        "0 bytes, too short for a BTH",
        "15 bytes, too short for a BTH",
        "opcode 0x00 qp 000000 psn 000000 40 bytes [ICRC WRONG]",
        "SACK qp 00beef psn 000010 30 bytes [ICRC WRONG]",
    ]


def test_options__port_count_verbose_and_standard_input(tmp_path: Path) -> None:
    one = frame(GOLDEN[0].packet, V6)
    one["UDP"].dport = 4971
    path = write(tmp_path / "a.pcap", [one, one.copy(), one.copy()])
    assert run(path).stdout == ""
    shown = run("--port", "4971", "--count", "2", "--verbose", "-", stdin=path.read_bytes()).stdout
    assert shown.count("###[ BTH ]###") == 2
    assert shown.count("dma_bytes = 11\n") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nonexistent.pcap"], "dissect: cannot read /nonexistent.pcap: No such file"),
        ([str(DISSECT)], "Not a supported capture file"),
        (["--interface", "no-such-if"], "dissect: cannot capture on no-such-if"),
    ],
)
def test_errors__one_line(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def may_capture() -> bool:
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
    except PermissionError:
        return False
    return True


@pytest.mark.skipif(not may_capture(), reason="capturing on an interface needs root")
def test_interface__live_on_loopback(codec: Codec) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as end:
        end.bind(("::1", 0))
        port = end.getsockname()[1]
        packet = codec.packet(BY_NAME["probe"].fields, Flow("::1", "::1", port, port))
        command = [sys.executable, str(DISSECT), "-i", "lo", "-p", str(port), "-c", "1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as live:
            for _ in range(200):  # the tool needs a moment until it listens
                end.sendto(packet, ("::1", port))
                try:
                    live.wait(0.05)
                    break
                except subprocess.TimeoutExpired:
                    continue
            else:
                live.kill()
            line = live.communicate()[0]
    # the kernel chose a flow label; other traffic may have had the first packet there
    assert re.fullmatch(
        rf"\d+\.\d{{6}} ::1 > ::1 ev {port:04x}[0-9a-f]{{4}}"
        r" PROBE qp abcdef psn 000000 id 0xfffe ts 4660\n",
        line,
    )


def test_help__has_examples() -> None:
    assert "tools/dissect --verbose" in run("--help").stdout


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payloads=st.lists(st.binary(max_size=120), min_size=20, max_size=50))
def test_file__rubbish_gets_a_line_each(tmp_path: Path, payloads: list[bytes]) -> None:
    headed = [GOLDEN[i % len(GOLDEN)].packet[:12] + rest for i, rest in enumerate(payloads)]
    done = run(write(tmp_path / "a.pcap", [frame(payload, V6) for payload in headed]))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) >= len(headed)
