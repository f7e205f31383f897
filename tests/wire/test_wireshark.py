# SPDX-License-Identifier: Apache-2.0
"""The dissector for Wireshark shows what `mrc dissect` shows, and is installed for the user."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import needs_tshark, tshark
from scapy.packet import Packet
from slowness import PATIENCE
from wire.codec import Codec, Fields, Flow, flows, packets
from wire.golden import BY_NAME, CARRIER, FLOW_LABEL, GOLDEN, V4, V6, frame, sealed, write

from mrc.cli.main import main
from mrc.dissect import cli as dissect_cli
from mrc.dissect import packet as dissected

LUA = ("-X", f"lua_script:{dissect_cli.LUA}")


def ask(path: Path, *options: str, script: Sequence[str] = LUA) -> list[str]:
    done = tshark(*script, "-r", str(path), *options)
    assert "Lua" not in done.stderr, done.stderr
    return done.stdout.splitlines()


def columns(path: Path, *names: str, shown: str = "mrc") -> list[list[str]]:
    """The values of these fields in each packet."""
    options = [option for name in names for option in ("-e", name)]
    return [line.split("\t") for line in ask(path, "-Y", shown, "-T", "fields", *options)]


def golden_frames() -> list[Packet]:
    return [frame(golden.packet, golden.flow) for golden in GOLDEN]


# ---- The fields are those of mrc dissect -------------------------------------------------------

FIELDS = {
    (header, field.name): ".".join(
        ("mrc", *[dissected.WIRESHARK[header][0]] * (header != "BTH"),
         dissected.SHORTER.get(field.name, field.name))
    )
    for header, table in dissected.TABLES.items()
    for field in table
    if field.name
}  # fmt: skip


def test_tables__are_those_of_mrc_dissect() -> None:
    tool = Path(dissect_cli.__file__).parents[2] / "tools" / "dissector"
    done = subprocess.run([sys.executable, str(tool), "--check"], check=False)
    assert done.returncode == 0


def number(cell: str) -> int | None:
    """tshark versions print a bool differently."""
    return (
        {"True": 1, "False": 0, "": None}[cell] if cell in ("True", "False", "") else int(cell, 0)
    )


def check_fields(path: Path, sent: Sequence[tuple[bytes, Flow]]) -> None:
    names = [*FIELDS.values(), "mrc.ev", "mrc.payload_bytes"]
    for (data, flow), row in zip(sent, columns(path, *names), strict=True):
        shown = dict(zip(names, map(number, row), strict=True))
        label = FLOW_LABEL if flow.family == 6 else 0
        ours = dissected.UdpFlow(
            ip_address(flow.src), ip_address(flow.dst), flow.sport, flow.dport, label
        )  # fmt: skip
        packet = dissected.Packet.decode(data, ours)
        expected = {
            name: packet.headers.get(header, {}).get(field)
            for (header, field), name in FIELDS.items()
        }
        more = {"mrc.ev": ours.ev, "mrc.payload_bytes": packet.payload_bytes}
        assert shown == expected | more


@needs_tshark
def test_fields__of_golden_and_sealed_packets(tmp_path: Path) -> None:
    sent = [(golden.packet, golden.flow) for golden in GOLDEN]
    sent += [(sealed(golden.name, mode), V6) for golden in GOLDEN for mode in (1, 2)]
    check_fields(write(tmp_path / "a.pcap", [frame(*each) for each in sent]), sent)


@needs_tshark
@settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flow=flows(), generated=st.lists(packets(), min_size=20, max_size=60))
def test_fields__of_any_packet_through_srv6(
    codec: Codec, tmp_path: Path, flow: Flow, generated: Sequence[Fields]
) -> None:
    flow = Flow(flow.src, flow.dst, flow.sport)  # to the port of MRC
    sent = [(codec.packet(fields, flow), flow) for fields in generated]
    frames = [frame(*each, via=CARRIER) for each in sent]
    check_fields(write(tmp_path / "a.pcap", frames), sent)


@pytest.mark.slow
@needs_tshark
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payloads=st.lists(st.binary(max_size=120), min_size=20, max_size=50))
def test_fields__of_rubbish(tmp_path: Path, payloads: list[bytes]) -> None:
    """No error in the script: Wireshark shows these in the packet."""
    headed = [GOLDEN[i % len(GOLDEN)].packet[: i % 20] + rest for i, rest in enumerate(payloads)]
    path = write(tmp_path / "a.pcap", [frame(payload, V6) for payload in headed])
    assert len(ask(path)) == len(payloads)
    assert ask(path, "-Y", "_ws.lua.error") == []


# ---- What only Wireshark shows -----------------------------------------------------------------


@needs_tshark
def test_words__of_a_bitmap(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pcap", [frame(BY_NAME[name].packet, V6) for name in (
        "sack", "sack-of-probe",
    )])  # fmt: skip
    assert columns(path, "mrc.sack.received") == [["17 20-21 80"], ["16777152-16777215"]]


@needs_tshark
def test_path__of_a_packet_through_srv6(tmp_path: Path) -> None:
    frames = [
        frame(BY_NAME["write-only-empty"].packet, V6, via=CARRIER),
        frame(BY_NAME["write-only-ipv4"].packet, V4, via=CARRIER),
        frame(BY_NAME["write-only-empty"].packet, V6),
    ]
    path = write(tmp_path / "a.pcap", frames)
    usids = "0x0100,0x0201,0xe000"
    assert columns(path, "mrc.carrier", "mrc.usid", "mrc.ev") == [
        [CARRIER, usids, "0xc001abcd"], [CARRIER, usids, "0xc0020000"], ["", "", "0xc001abcd"],
    ]  # fmt: skip
    assert len(ask(path, "-Y", "mrc.usid == 0x201")) == 2


@needs_tshark
def test_notes(tmp_path: Path) -> None:
    marked = frame(BY_NAME["write-only-empty"].packet, V6, via=CARRIER)
    marked["IPv6"].tc = 3  # the outer one
    trimmed = frame(BY_NAME["write-middle-timestamp"].packet[:36], V6, tclass=0x07 << 2)
    short = frame(BY_NAME["sack"].packet[:30], V6)
    path = write(tmp_path / "a.pcap", [*golden_frames(), marked, trimmed, short])
    n = len(GOLDEN)
    by_note = {
        "rtx": [i for i, golden in enumerate(GOLDEN) if golden.fields.get("rtx")],
        "nack": [i for i, golden in enumerate(GOLDEN) if golden.name.startswith("nack")],
        "nak": [i for i, golden in enumerate(GOLDEN) if golden.name.startswith("nak")],
        "ce": [n], "trimmed": [n + 1], "short": [n + 2], "cut": [],
    }  # fmt: skip
    rows = columns(path, *(f"mrc.expert.{note}" for note in by_note))
    for place, (note, numbers) in enumerate(by_note.items()):
        assert [i for i, row in enumerate(rows) if row[place]] == numbers, note


@pytest.mark.more
@needs_tshark
@pytest.mark.parametrize("captured", [70, 120])
def test_notes__not_captured_to_its_end(tmp_path: Path, captured: int) -> None:
    golden = BY_NAME["write-last-imm"]
    whole = write(tmp_path / "a.pcap", [frame(golden.packet, V6)])
    path = tmp_path / "b.pcap"
    cut = bytes(frame(golden.packet, V6))[:captured]
    header = whole.read_bytes()[:40]
    path.write_bytes(header[:32] + len(cut).to_bytes(4, "little") + header[36:40] + cut)
    is_cut = captured < len(frame(golden.packet, V6))
    noted = len(ask(path, "-Y", "mrc.expert.cut")), len(ask(path, "-Y", "mrc.expert.short"))
    assert noted == (int(is_cut and captured >= 62 + 16), 0)


@needs_tshark
def test_burst__is_taken_apart(tmp_path: Path) -> None:
    packet = BY_NAME["write-middle-timestamp"].packet
    looks_alike = BY_NAME["write-first"].packet[:-4] + packet + b"1234"
    path = write(tmp_path / "a.pcap", [frame(packet * 3, V6), frame(looks_alike, V6)])
    assert columns(path, "mrc.part", "mrc.opcode") == [
        ["1,2,3", "0xc7,0xc7,0xc7"], ["", "0xc6"],
    ]  # fmt: skip


# ---- The port, and its other users -------------------------------------------------------------


@needs_tshark
def test_port__keeps_roce(tmp_path: Path) -> None:
    """The dissector of RoCE, which has the same port, gets what is not MRC."""
    roce = bytearray(BY_NAME["write-only-empty"].packet)
    roce[0] = 0x0A
    path = write(tmp_path / "a.pcap", [frame(bytes(roce), V6)])
    (with_mrc,) = ask(path)
    assert [with_mrc] == ask(path, script=()) and "RC RDMA Write Only" in with_mrc
    assert ask(path, "-Y", "mrc") == []


@needs_tshark
@pytest.mark.parametrize("option", [("-o", "mrc.port:4971"), ("-d", "udp.port==4971,mrc")])
def test_port__another(tmp_path: Path, option: tuple[str, str]) -> None:
    frames = [
        frame(GOLDEN[0].packet, Flow(V6.src, V6.dst, V6.sport, port)) for port in (4971, 4791)
    ]
    path = write(tmp_path / "a.pcap", frames)
    numbers = ask(path, *option, "-Y", "mrc", "-T", "fields", "-e", "udp.dstport")
    assert numbers == (["4971"] if option[0] == "-o" else ["4971", "4791"])


@needs_tshark
def test_port__any_that_no_other_dissector_has(tmp_path: Path) -> None:
    packet = GOLDEN[0].packet
    frames = [
        frame(start + packet[2:], Flow(V6.src, V6.dst, V6.sport, 40000))
        for start in (packet[:2], b"\x0a\0")
    ]
    path = write(tmp_path / "a.pcap", frames)
    assert columns(path, "udp.dstport", "mrc.opcode") == [["40000", hex(packet[0])]]


# ---- Documented, and installed -----------------------------------------------------------------


@pytest.mark.more
@needs_tshark
def test_readme__its_filters_find_packets(tmp_path: Path) -> None:
    readme = (dissect_cli.LUA.parent / "README.md").read_text()
    filters = re.findall(r"^\| `(mrc\.[^`]+)` \|", readme.split("| Fields")[0], re.M)
    assert len(filters) >= 5
    marked = frame(BY_NAME["write-only-empty"].packet, V6, via=CARRIER, tclass=3)
    more = [marked, frame(sealed("write-first", 2), V6)]
    more.append(frame(BY_NAME["write-first"].packet, V6, tclass=0x07 << 2))
    path = write(tmp_path / "a.pcap", [*golden_frames(), *more])
    for shown in filters:
        found = len(ask(path, "-Y", shown))
        assert 0 < found < len(GOLDEN) + len(more), shown


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mrc", "dissect", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.more
@pytest.mark.parametrize("asked", [True, False], ids=["tshark", "no tshark"])
def test_install__and_remove(home: Path, monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    if not asked:
        monkeypatch.setenv("PATH", "/nonexistent")
    installed = Path(run("--install").stdout.removeprefix("installed ").strip())
    assert installed.is_relative_to(home) and installed.read_text() == dissect_cli.LUA.read_text()
    assert run("--uninstall").returncode == 0 and not installed.exists()
    again = run("--uninstall")
    assert again.returncode == 1 and again.stderr == f"mrc dissect: {installed}: is not installed\n"
    assert run("--lua").stdout.strip() == str(dissect_cli.LUA)


@pytest.mark.parametrize(("user", "noted"), [(0, True), (1000, False)])
def test_install__root_reads_that_wireshark_ignores_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    user: int, noted: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert main(["dissect", "--install"]) == 0
    assert ("unshare --user tshark" in capsys.readouterr().err) is noted


@pytest.mark.more
@needs_tshark
def test_install__then_every_tshark_decodes_mrc(home: Path) -> None:
    path = write(home / "a.pcap", golden_frames())
    assert run("--install").returncode == 0
    assert len(ask(path, "-Y", "mrc", script=())) == len(GOLDEN)
    assert len(ask(path, "-Y", "mrc")) == len(GOLDEN)  # also named on the command line: no error


def test_install__where_nothing_can_be_written(home: Path) -> None:
    (home / ".local").write_text("")
    done = run("--install")
    assert done.returncode == 1 and "not a directory" in done.stderr
    assert done.stderr.count("\n") == 1
