# SPDX-License-Identifier: Apache-2.0
"""`mrc dissect` prints the packets of a capture."""

from __future__ import annotations

import io
import re
import shutil
import socket
import struct
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path

import mrc_layers
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from printed import printed
from wire.capture import CARRIER, FLOW_LABEL, frame, write
from wire.codec import Codec, Flow
from wire.golden import GOLDEN, V4, V6, Golden

from mrc.dissect import packet as dissected
from mrc.dissect import plugin
from mrc.dissect.capture import CaptureError, read
from mrc.dissect.frame import ETHERNET, LINUX_SLL, LINUX_SLL2, RAW, udp_of
from mrc.dissect.text import what

BY_NAME = {golden.name: golden for golden in GOLDEN}


def run(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mrc", "dissect", *map(str, arguments)]
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
    assert shown.count("\n  BTH: opcode 198, ") == 2
    assert shown.count(", dma_bytes 11\n") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nonexistent.pcap"], "mrc dissect: /nonexistent.pcap: no such file"),
        ([__file__], "is no capture of tcpdump, tshark or dumpcap"),
        (["--interface", "no-such-if"], "mrc dissect: cannot capture on no-such-if"),
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
        command = [sys.executable, "-m", "mrc", "dissect", "-i", "lo", "-p", str(port), "-c", "1"]
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
    assert "mrc dissect --verbose" in run("--help").stdout


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payloads=st.lists(st.binary(max_size=120), min_size=20, max_size=50))
def test_file__rubbish_gets_a_line_each(tmp_path: Path, payloads: list[bytes]) -> None:
    headed = [GOLDEN[i % len(GOLDEN)].packet[:12] + rest for i, rest in enumerate(payloads)]
    done = run(write(tmp_path / "a.pcap", [frame(payload, V6) for payload in headed]))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) >= len(headed)


# ---- A second decoder agrees -------------------------------------------------------------------

SAME = {  # names of the scapy layers that differ
    "SETH": {"m": "mark"}, "EETH": {"m": "mark", "op": "operation"}, "ERTH": {"op": "operation"},
    "CC_STATE": {"rcvd_bytes": "rcvd_units"},
}  # fmt: skip


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
def test_decode__as_the_layers_of_scapy(golden: Golden) -> None:
    flow = dissected.Flow(
        ip_address(golden.flow.src), ip_address(golden.flow.dst), golden.flow.sport,
        golden.flow.dport,
    )  # fmt: skip
    ours = dissected.decode(golden.packet, flow)
    theirs = mrc_layers.BTH(golden.packet)
    assert ours.icrc_is_right is True
    assert ours.payload_bytes == len(mrc_layers.payload_of(theirs))
    for header, fields in ours.headers.items():
        layer = theirs if header == "BTH" else theirs[header]
        names = SAME.get(header, {})
        expected = {
            names.get(field.name, field.name): layer.getfieldval(field.name)
            for field in layer.fields_desc
            if not re.fullmatch(r"i?n?v?_?res\d?|icrc", field.name)
        }
        assert fields == expected


def test_json__of_a_burst_through_srv6(tmp_path: Path) -> None:
    packet = BY_NAME["write-middle-timestamp"].packet
    path = write(tmp_path / "a.pcap", [frame(packet * 2, V6, via=CARRIER, tclass=3)])
    first, second = (printed("dissect", line) for line in run("--json", path).stdout.splitlines())
    assert (first["part"], second["part"], first["parts"]) == (1, 2, 2)
    assert first["carrier"] == CARRIER and first["ce"] is True
    assert first["type"] == "WRITE_MIDDLE" and first["headers"]["RETH"]["rkey"] == 0xDEADBEEF
    assert first["icrc_is_right"] is True


def test_file__pcapng_of_both_byte_orders(tmp_path: Path) -> None:
    data = bytes(frame(GOLDEN[0].packet, V6))
    for order in "<>":
        pad = bytes(-len(data) % 4)
        path = tmp_path / "a.pcapng"
        body = struct.pack(f"{order}IIIII", 0, 0, 5, len(data), len(data)) + data + pad
        path.write_bytes(
            block(order, 0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1))
            + block(order, 1, struct.pack(f"{order}HHI", 1, 0, 0) + struct.pack(
                f"{order}HHB3xHH", 9, 1, 9, 0, 0))
            + block(order, 6, body)
            + block(order, 6, body)
        )  # fmt: skip
        lines = run(path).stdout.splitlines()
        assert len(lines) == 2 and all("WRITE_FIRST qp abcdef" in line for line in lines)


def block(order: str, kind: int, body: bytes) -> bytes:
    size = struct.pack(f"{order}I", len(body) + 12)
    return struct.pack(f"{order}I", kind) + size + body + size


@given(data=st.binary(max_size=300), head=st.sampled_from([
    b"\x0a\x0d\x0d\x0a", b"\xd4\xc3\xb2\xa1", b"\xa1\xb2\x3c\x4d", b"",
]))  # fmt: skip
def test_capture__of_any_bytes_ends(data: bytes, head: bytes) -> None:
    try:
        frames = list(read(io.BytesIO(head + data), "a"))
    except CaptureError:
        return
    for one in frames:
        udp_of(one.data, one.link)


@given(
    data=st.binary(max_size=200), link=st.sampled_from([ETHERNET, RAW, LINUX_SLL, LINUX_SLL2, 7])
)
def test_frame__of_any_bytes(data: bytes, link: int) -> None:
    found = udp_of(data, link)
    if found is not None:
        for piece in dissected.split(found[1]):
            shown = dissected.decode(piece, found[0])
            assert what(shown, found[0])


# ---- Wireshark ---------------------------------------------------------------------------------

tshark = pytest.mark.skipif(shutil.which("tshark") is None, reason="apt-get install tshark")


def ask(path: Path, *options: str) -> list[str]:
    command = ["tshark", "-X", f"lua_script:{plugin.LUA}", "-r", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "Lua" not in done.stderr.replace("Lua: ", "Lua", 0) or "rror" not in done.stderr
    return done.stdout.splitlines()


@tshark
def test_wireshark__every_field_of_the_golden_packets(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pcap", [frame(golden.packet, golden.flow) for golden in GOLDEN])
    columns = ("mrc.opcode", "mrc.qpn", "mrc.psn", "mrc.ev", "mrc.payload_bytes", "mrc.rtx")
    rows = ask(path, "-T", "fields", *(part for name in columns for part in ("-e", name)))
    for golden, row in zip(GOLDEN, rows, strict=True):
        opcode, qpn, psn, ev, size, rtx = row.split("\t")
        fields = golden.fields
        assert int(opcode, 0) == fields["opcode"] and int(qpn, 0) == fields["dest_qpn"]
        assert int(psn) == fields.get("psn", 0)
        label = 0 if golden.flow.family == 4 else FLOW_LABEL & 0xFFFF
        assert int(ev, 0) == golden.flow.sport << 16 | label
        assert rtx in ("1", "True") if fields.get("rtx") else rtx in ("0", "False")
        if "payload" in fields:
            assert int(size) == len(bytes(fields["payload"]))


@tshark
def test_wireshark__words_filters_and_notes(tmp_path: Path) -> None:
    frames = [frame(golden.packet, golden.flow) for golden in GOLDEN]
    marked = frame(BY_NAME["write-only-empty"].packet, V6, via=CARRIER, tclass=3)
    path = write(tmp_path / "a.pcap", [*frames, marked])
    assert len(ask(path, "-Y", "mrc")) == len(GOLDEN) + 1
    again = [golden for golden in GOLDEN if golden.fields.get("rtx")]
    assert len(ask(path, "-Y", "mrc.rtx == 1")) == len(again) > 0
    assert len(ask(path, "-Y", "mrc.expert.ce")) == 1
    sack = ask(path, "-Y", "mrc.sack.bitmap", "-T", "fields", "-e", "mrc.sack.received")
    assert sack[0] == "17 20-21 80"
    usid = ask(path, "-Y", "mrc.usid", "-T", "fields", "-e", "mrc.usid")
    assert usid == [CARRIER]
    assert ask(path, "-Y", "mrc.expert.nak")


@tshark
def test_wireshark__a_burst(tmp_path: Path) -> None:
    packet = BY_NAME["write-middle-timestamp"].packet
    path = write(tmp_path / "a.pcap", [frame(packet * 3, V6)])
    (row,) = ask(path, "-T", "fields", "-e", "mrc.part")
    assert row == "1,2,3"


def test_install__and_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    installed = Path(run("--install").stdout.removeprefix("installed ").strip())
    assert installed.is_relative_to(tmp_path) and installed.read_text() == plugin.LUA.read_text()
    assert run("--uninstall").returncode == 0 and not installed.exists()
    assert run("--uninstall").returncode == 1
    assert run("--lua").stdout.strip() == str(plugin.LUA)
