# SPDX-License-Identifier: Apache-2.0
"""`mrc dissect` prints the packets of a capture."""

from __future__ import annotations

import io
import itertools
import re
import socket
import struct
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from ipaddress import ip_address
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from printed import printed
from slowness import until
from wire.codec import BTH, UNION, Codec, Fields, Flow, flows, packets
from wire.golden import BY_NAME, CARRIER, GOLDEN, V4, V6, frame, sealed, write

from mrc import products
from mrc.cli.main import main
from mrc.dissect import packet as dissected
from mrc.dissect.capture import (
    ETHERNET,
    LINUX_SLL,
    LINUX_SLL2,
    RAW,
    CaptureError,
    LiveCapture,
    read,
    udp_of,
)


def run(*arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    """`mrc dissect` in this process."""
    command = ["dissect", *map(str, arguments)]
    read = io.TextIOWrapper(io.BytesIO(stdin))
    with (
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as err,
        mock.patch.object(sys, "stdin", read),
    ):
        code = main(command)
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


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
    other_port = frame(bytes(40), V6)
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


def test_file__a_mark_on_the_outer_header_alone(tmp_path: Path) -> None:
    """Switches mark the outer header. What arrives has it around an inner one without a mark."""
    for golden in (BY_NAME["write-only-empty"], BY_NAME["write-only-ipv4"]):
        one = frame(golden.packet, golden.flow, via=CARRIER)
        one["IPv6"].tc = 3
        (line,) = run(write(tmp_path / "a.pcap", [one])).stdout.splitlines()
        assert line.endswith("[CE]")


@pytest.mark.more
def test_file__trimmed_by_a_switch(tmp_path: Path) -> None:
    packet = BY_NAME["write-middle-timestamp"].packet[:36]
    trimmed = [frame(packet, V6, tclass=dscp << 2) for dscp in (0x07, 0x0B)]
    others = [frame(packet, V6), frame(BY_NAME["sack"].packet, V6, tclass=0x07 << 2)]
    path = write(tmp_path / "a.pcap", [*trimmed, *others])
    ends = [line.partition("[")[2] for line in run(path).stdout.splitlines()]
    assert ends == ["trimmed]", "trimmed]", "ICRC WRONG]", ""]
    first = printed("dissect", run("--json", path).stdout.splitlines()[0])
    assert first["trimmed"] is True and first["icrc_is_right"] is None
    assert first["payload_bytes"] == 0 and first["headers"]["RETH"]["dma_bytes"] == 256


@pytest.mark.more
@pytest.mark.parametrize(
    ("captured", "expected"),
    [
        (102, "WRITE_MIDDLE qp abcdef psn 000000 msn 7 va 0x7f0012345680 rkey 0xdeadbeef"
         " bytes 4 of 256 ts 4660 [4 bytes not captured]"),
        (82, "WRITE_MIDDLE qp abcdef psn 000000 44 bytes [24 bytes not captured]"),
        (66, "44 bytes, 40 not captured"),
    ],
)  # fmt: skip
def test_file__of_which_each_frame_lacks_its_end(
    tmp_path: Path, captured: int, expected: str
) -> None:
    data = bytes(frame(BY_NAME["write-middle-timestamp"].packet, V6))
    path = tmp_path / "a.pcap"
    header = struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, captured, 1)
    path.write_bytes(
        header + struct.pack("<IIII", 1, 0, captured, len(data)) + data[:captured]
    )  # fmt: skip
    (line,) = run(path).stdout.splitlines()
    assert line.split(" ev c001abcd ")[1] == expected


@pytest.mark.more
@pytest.mark.parametrize("mode", [1, 2])
def test_file__sealed(tmp_path: Path, mode: int) -> None:
    """With mode 2 the immediate is encrypted, so it is not shown."""
    path = write(tmp_path / "a.pcap", [frame(sealed("write-only-imm-padded", mode), V6)])
    (line,) = run(path).stdout.splitlines()
    shown = "imm 0xffffffff [m auth 77]" if mode == 1 else "imm encrypted [m aead 77]"
    assert line.endswith(f"bytes 3 of 3 rqmsn 2 {shown}")
    result = printed("dissect", run("--json", path).stdout)
    assert result["headers"]["SEAL"] == {"mode": mode, "key_qpn": 3, "counter": 77}
    assert result["icrc_is_right"] is None and ("ImmDt" in result["headers"]) is (mode == 1)


def test_file__without_a_packet_of_mrc(tmp_path: Path) -> None:
    done = run("-p", "5", write(tmp_path / "a.pcap", [frame(GOLDEN[0].packet, V6)] * 2))
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == (
        "mrc dissect: no packets to UDP port 5 among 2; --port selects another port\n"
    )


def test_frame__what_follows_the_datagram_is_not_read() -> None:
    """A frame check sequence, or the padding of a short frame."""
    for golden in GOLDEN:
        data = bytes(frame(golden.packet, golden.flow)) + b"\xff" * 4
        found = udp_of(data, ETHERNET)
        assert found is not None and found[1] == golden.packet


def test_options__ports_count_verbose_and_standard_input(tmp_path: Path) -> None:
    frames = [frame(GOLDEN[0].packet, V6) for _ in range(4)]
    for one, port in zip(frames, (4971, 5, 4971, 4971), strict=True):
        one["UDP"].dport = port
    path = write(tmp_path / "a.pcap", frames)
    assert len(run(path).stdout.splitlines()) == 4  # they begin as MRC
    assert len(run("-p", "4971", path).stdout.splitlines()) == 3
    assert len(run("-p", "4971", "-p", "5", path).stdout.splitlines()) == 4
    shown = run("--port", "4971", "--count", "2", "--verbose", "-", stdin=path.read_bytes()).stdout
    assert shown.count("\n  BTH: opcode 198, ") == 2
    assert shown.count(", dma_bytes 11\n") == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["/nonexistent.pcap"], 2, "mrc dissect: /nonexistent.pcap: no such file"),
        ([__file__], 2, "is no capture of tcpdump, tshark or dumpcap"),
        (["--interface", "no-such-if"], 1, "mrc dissect: cannot capture on no-such-if"),
    ],
)
def test_errors__one_line(arguments: list[str], code: int, message: str) -> None:
    done = run(*arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_readings__in_a_tree_without_the_judge(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(products, "READINGS", "mrc.absent.shown")
    assert main(["dissect", "--readings", "a.pcap"]) == 2
    wrong = "mrc dissect: --readings: needs mrc conform, which this mrc lacks\n"
    assert capsys.readouterr().err == wrong


def test_errors__a_damaged_length(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pcap", [frame(GOLDEN[0].packet, V6)])
    data = bytearray(path.read_bytes())
    data[24 + 8 + 3] = 0x7F
    path.write_bytes(data)
    done = run(path)
    assert done.returncode == 2 and "is damaged: a packet of 21" in done.stderr


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

            def has_ended() -> bool:  # the tool needs a moment until it listens
                end.sendto(packet, ("::1", port))
                return live.poll() is not None

            try:
                until(has_ended, pause=0.05)
            finally:
                live.kill()
            line = live.communicate()[0]
    # the kernel chose a flow label; other traffic may have had the first packet there
    assert re.fullmatch(
        rf"\d+\.\d{{6}} ::1 > ::1 ev {port:04x}[0-9a-f]{{4}}"
        r" PROBE qp abcdef psn 000000 id 0xfffe ts 4660\n",
        line,
    )


@pytest.mark.usefixtures("quiet_loopback")
def test_interface__each_packet_of_a_loopback_once() -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as end, LiveCapture("lo") as live:
        end.bind(("::1", 0))
        port = end.getsockname()[1]
        before = time.time()
        for number in range(3):
            end.sendto(b"%d" % number, ("::1", port))
        found = ((frame, udp_of(frame.data, frame.link)) for frame in live)
        ours = (
            (frame.seconds, udp[1]) for frame, udp in found if udp and udp[0].dport == port
        )  # fmt: skip
        taken = list(itertools.islice(ours, 3))
        assert live.lost() == 0
    assert [payload for _, payload in taken] == [b"0", b"1", b"2"]
    assert before - 1 < taken[0][0] <= taken[2][0] < time.time() + 1


def test_help__has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["dissect", "--help"])
    assert "mrc dissect --verbose" in capsys.readouterr().out


@pytest.mark.more
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payloads=st.lists(st.binary(max_size=120), min_size=20, max_size=50))
def test_file__rubbish_gets_a_line_each(tmp_path: Path, payloads: list[bytes]) -> None:
    headed = [GOLDEN[i % len(GOLDEN)].packet[:12] + rest for i, rest in enumerate(payloads)]
    done = run(write(tmp_path / "a.pcap", [frame(payload, V6) for payload in headed]))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) >= len(headed)


# ---- Bursts that the kernel coalesced ----------------------------------------------------------


def burst(codec: Codec, sizes: list[int], flow: Flow = V6) -> list[bytes]:
    """Packets of one message with the given payload bytes each."""
    fields = GOLDEN[0].fields | {"dma_bytes": 1 << 20}
    return [
        codec.packet(fields | {"psn": i, "pad": -n % 4, "payload": bytes([i]) * n}, flow)
        for i, n in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    "sizes", [[100], [100, 100], [100] * 15, [100] * 3 + [1], [8844] * 6 + [8001], [4, 4]]
)
def test_split__finds_the_packets(codec: Codec, sizes: list[int]) -> None:
    parts = burst(codec, sizes)
    assert dissected.split(b"".join(parts)) == parts


def test_split__a_payload_that_looks_like_a_header(codec: Codec) -> None:
    """A BTH in the payload is no second packet: the bytes after it must be valid too."""
    inner = burst(codec, [4])[0]
    fields = GOLDEN[0].fields | {"dma_bytes": 1 << 20, "payload": inner + bytes(100)}
    packet = codec.packet(fields, V6)
    assert dissected.split(packet) == [packet]


def test_split__of_a_payload_full_of_likely_beginnings() -> None:
    """Each is looked at once, or a few bytes of a file could cost minutes."""
    packet = GOLDEN[0].packet[:12] + (b"\xff\xff\0" + GOLDEN[0].packet[5:8]) * 10_000
    assert dissected.split(packet) == [packet]
    found = udp_of(bytes(frame(b"", V6)) + bytes(1 << 20), ETHERNET)
    assert found is not None and len(found[1]) < 1 << 16


# ---- The engine reads the same ------------------------------------------------------------------


def ours_of(flow: Flow) -> dissected.UdpFlow:
    return dissected.UdpFlow(ip_address(flow.src), ip_address(flow.dst), flow.sport, flow.dport)


IN_C = {  # names of the C decoder that differ
    "mark": "m", "operation": "op", "rcvd_units": "rcvd_bytes",
}  # fmt: skip


@given(fields=packets(), flow=flows())
def test_decode__any_packet_as_the_engine(codec: Codec, fields: Fields, flow: Flow) -> None:
    packet = codec.packet(fields, flow)
    ours = dissected.Packet.decode(packet, ours_of(flow))
    bth, *behind = ours.headers.values()
    found = {IN_C.get(name, name): value for header in behind for name, value in header.items()}
    expected = dict(fields)
    payload = expected.pop("payload")
    union = expected.pop(UNION.get(fields["opcode"], ""), {})
    assert ours.icrc_is_right and ours.payload_bytes == len(payload)
    assert {name: bth[name] for name in BTH} == {name: expected.pop(name) for name in BTH}
    for name, value in {**expected, **union}.items():
        assert found.get(name, 0) == value, name


def test_json__of_a_burst_through_srv6(tmp_path: Path) -> None:
    packet = BY_NAME["write-middle-timestamp"].packet
    path = write(tmp_path / "a.pcap", [frame(packet * 2, V6, via=CARRIER, tclass=3)])
    first, second = (printed("dissect", line) for line in run("--json", path).stdout.splitlines())
    assert (first["part"], second["part"], first["parts"]) == (1, 2, 2)
    assert first["carrier"] == CARRIER and first["ce"] is True
    assert first["type"] == "WRITE_MIDDLE" and first["headers"]["RETH"]["rkey"] == 0xDEADBEEF
    assert first["icrc_is_right"] is True


@pytest.mark.more
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
            shown = dissected.Packet.decode(piece, found[0])
            assert shown.line(found[0])
