# SPDX-License-Identifier: Apache-2.0
"""The stored state of test beds, their emulator, their namespaces without root, their captures."""

from __future__ import annotations

import errno
import io
import os
import shutil
import socket
import stat
import struct
import sys
from pathlib import Path
from threading import Thread

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from scapy.utils import PcapReader

from mrc.doctor import State
from mrc.errors import ConfigError, StateError
from mrc.linux import netns, system
from mrc.testbed import capture, findings, rootless, state
from mrc.testbed import emulator as control
from mrc.testbed.capture import Offload
from mrc.testbed.faults import SOCKET, Fault, Mode
from mrc.testbed.plan import make_plan
from mrc.testbed.shape import Shape
from mrc.testbed.state import BedState
from mrc.testbed.tiers import LinkChange

SHAPE = Shape(
    hosts=3, planes=2, t1=1, host_rate_bps=None, mtu=1500, links=(LinkChange("t1:1.0", 10**6),)
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MRC_RUN_DIR", str(tmp_path / "there"))
    return tmp_path / "there"


def test_load__gives_back_what_was_saved() -> None:
    faults = {"plane:2": Fault(Mode.DOWN), "t1:1.0": Fault(Mode.SILENT, 0.25)}
    for each in (
        BedState(SHAPE),
        BedState(Shape(), up=True),
        BedState(SHAPE, up=True, faults=faults),
    ):
        state.save("x", each)
        assert state.load("x") == each


def test_load__none_when_there_is_none() -> None:
    assert state.load("x") is None
    assert state.names() == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": 1}',
        '{"schema": 2, "up": true, "shape": {}, "faults": {}}',
        '{"schema": 1, "up": true, "shape": {"hosts": 0}, "faults": {}}',
        '{"schema": 1, "up": true, "shape": {"colour": 1}, "faults": {}}',
        '{"up": true, "shape": {}, "faults": {}}',
        '{"schema": 1, "shape": {"addresses": {"colour": 1}}}',
        '{"schema": 1, "shape": {"links": [{"target": "plane:1", "colour": 1}]}}',
        '{"schema": 1, "shape": {}, "faults": {"plane:1": {"colour": 1}}}',
    ],
)
def test_load__names_the_file_it_cannot_read(folder: Path, text: str) -> None:
    state.save("x", BedState(SHAPE))
    (folder / "x" / "testbed.json").write_text(text)
    with pytest.raises(
        ConfigError, match=r"x/testbed\.json: cannot read: .* down --name x removes it"
    ):
        state.load("x")


def test_with_fault__and_without_leave_the_rest() -> None:
    first = BedState(SHAPE, up=True).with_faults({"plane:1": Fault(), "plane:2": Fault()})
    assert list(first.faults) == ["plane:1", "plane:2"]
    assert list(first.without("plane:1", "t1:1.0").faults) == ["plane:2"]
    assert first.without("plane:1").up


def test_names__are_those_that_were_begun(folder: Path) -> None:
    for name in ("b", "a"):
        state.save(name, BedState(SHAPE))
    (folder / "c").mkdir()
    assert state.names() == ["a", "b"]


def test_write_files__may_be_read_by_everyone(folder: Path) -> None:
    """Goal: the hosts' commands run as ordinary users, even if root keeps its files to itself."""
    plan = make_plan("x", SHAPE)
    before = os.umask(0o077)
    try:
        state.save("x", BedState(SHAPE))
        state.write_files(plan)
    finally:
        os.umask(before)
    assert state.config_path("x", "h1") == folder / "x" / "h1.toml"
    configs = {state.config_path("x", host): text for host, text in plan.configs.items()}
    for path, text in {**configs, state.hosts_path("x"): plan.hosts_file}.items():
        assert path.read_text() == text
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    state.forget("x")
    assert not folder.joinpath("x").exists()


def test_forget__removes_one_only() -> None:
    state.save("x", BedState(SHAPE))
    state.save("y", BedState(SHAPE))
    state.forget("x")
    state.forget("x")
    assert state.names() == ["y"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errno.EACCES, "permission denied; test beds require root"),
        (errno.EPERM, "operation not permitted; test beds require root"),
        (errno.ENOSPC, "no space left on device"),
        (errno.EROFS, "read-only file system"),
    ],
)
def test_lock__says_who_may(error: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setenv("MRC_RUN_DIR", "/proc/mrc")
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ConfigError) as raised, state.lock():
        pass
    assert str(raised.value) == f"cannot write /proc/mrc: {said}"


def test_lock__is_free_again_after_an_error() -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError), state.lock():
            raise RuntimeError


def test_forget__says_what_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state.forget("x")  # there is none
    state.save("x", BedState(SHAPE))

    def rmtree(path: Path) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch, pytest.raises(ConfigError, match="too many open files"):
        patch.setattr(shutil, "rmtree", rmtree)
        state.forget("x")
    state.forget("x")
    assert not (folder / "x").exists()


# ---- An emulator that does not answer ------------------------------------------------------------


@pytest.mark.parametrize("answer", [b"", b'{"stats": {"pack'])
def test_ask__an_emulator_that_ends_meanwhile(tmp_path: Path, answer: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / SOCKET))
        listener.listen()

        def end() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        emulator = Thread(target=end)
        emulator.start()
        try:
            with pytest.raises(StateError, match="ended before it answered: rebuild the test bed"):
                control.ask(tmp_path, {"do": "status"})
        finally:
            emulator.join()


def test_is_running__many_requests_wait(tmp_path: Path) -> None:
    """No answer yet is not the end of the emulator."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / SOCKET))
        listener.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waiting:
            waiting.connect(str(tmp_path / SOCKET))
            assert control.is_running(tmp_path)
    assert not control.is_running(tmp_path)


# ---- Root of a user namespace --------------------------------------------------------------------


def test_become_root__starts_the_same_command_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "execvp", lambda _, argv: started.append(argv))
    monkeypatch.setattr(sys, "argv", ["mrc", "send", "--wait", "5"])
    rootless.become_root()
    (argv,) = started
    assert argv[:2] == [*system.require("unshare"), "-Urnm"]
    assert argv[-7:] == [sys.executable, "-P", "-m", "mrc", "send", "--wait", "5"]


def test_become_root__says_when_the_system_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(rootless, "is_allowed", lambda: False)
    with pytest.raises(StateError, match="forbids user namespaces"):
        rootless.become_root()


def test_become_root__root_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its uid is 0, but it may not make namespaces: it is served as an ordinary user is."""
    started: list[list[str]] = []
    monkeypatch.setattr(netns, "lacks", lambda: "CAP_SYS_ADMIN")
    monkeypatch.setattr(os, "execvp", lambda _, argv: started.append(argv))
    monkeypatch.setattr(rootless, "is_allowed", lambda: True)
    rootless.become_root()
    assert started[0][1] == "-Urnm"
    monkeypatch.setattr(rootless, "is_allowed", lambda: False)
    with pytest.raises(StateError, match="give this root CAP_SYS_ADMIN, or allow them: sysctl"):
        rootless.become_root()


def test_become_root__names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(system, "SYSTEM_FOLDERS", "/nowhere")
    with pytest.raises(StateError, match=r"^unshare and sh and mount are missing: apt-get"):
        rootless.become_root()


# ---- What this machine lacks ---------------------------------------------------------------------


def test_examine__what_is_not_good_comes_with_consequence_and_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Covers everything that may fail here: each verdict is inverted once."""

    def refused() -> dict[str, str | None]:
        raise StateError("unshare: not here")

    monkeypatch.setattr(rootless, "is_allowed", lambda: True)
    monkeypatch.setattr(findings, "kernel", refused)
    found = {each.name: each for each in findings.examine()}
    assert found["network namespaces"].found == "unshare: not here"
    everything: dict[str, str | None] = dict.fromkeys(findings._NEEDS, "refused")
    monkeypatch.setattr(findings, "kernel", lambda: everything)
    found = {each.name: each for each in findings.examine()}
    for name in everything:
        assert found[name].state is not State.OK
        assert found[name].consequence and found[name].remedy


# ---- Captures: bursts split into packets as on a wire; scapy checks the checksums ----------------


ETHERNET = Ether(src="02:00:00:00:00:02", dst="02:00:00:00:00:01")
INNER = IPv6(src="fd00:a::1", dst="fd00:a:1::1:0")
CARRIER = "fcbb:1:100:201:e000::"
HEADERS = {
    "ipv6": INNER,
    "carrier": IPv6(src="fd00:a::1", dst=CARRIER) / INNER,
    "carrier and SRH": IPv6(src="fd00:a::1", dst=CARRIER)
    / IPv6ExtHdrSegmentRouting(addresses=["fcbb:1:7::", CARRIER])
    / INNER,
    "ipv4": IP(src="10.0.0.1", dst="10.0.0.2", id=7),
}
PAYLOAD = bytes(index * 7 % 256 for index in range(2501))


def wire(headers: Packet, payload: bytes, number: int = 0) -> bytes:
    """The packet as scapy builds it, lengths and checksums included."""
    packet = ETHERNET / headers.copy() / UDP(sport=7, dport=4791) / Raw(payload)
    if IP in packet:
        packet[IP].id += number
    return bytes(packet)


def burst(headers: Packet, payload: bytes, gso_type: int, gso_bytes: int) -> tuple[bytes, Offload]:
    """A burst as in the kernel: the checksum is the sum of the pseudo header."""
    frame = bytearray(wire(headers, payload))
    udp = len(frame) - len(payload) - 8
    ends = frame[udp - 32 : udp] if IPv6 in headers else frame[udp - 8 : udp]
    words = struct.unpack(f"!{len(ends) // 2}H", ends)
    total = sum(words) + 17 + 8 + len(payload)
    struct.pack_into("!H", frame, udp + 6, (total & 0xFFFF) + (total >> 16))
    return bytes(frame), Offload(1, gso_type, udp + 8, gso_bytes, udp, 6)


@pytest.mark.parametrize("name", HEADERS)
def test_on_the_wire__cuts_a_burst(name: str) -> None:
    packets = list(capture.on_the_wire(*burst(HEADERS[name], PAYLOAD, 5, 1000)))
    parts = [PAYLOAD[:1000], PAYLOAD[1000:2000], PAYLOAD[2000:]]
    assert packets == [wire(HEADERS[name], part, n) for n, part in enumerate(parts)]


@pytest.mark.parametrize("name", HEADERS)
def test_on_the_wire__completes_a_checksum(name: str) -> None:
    assert list(capture.on_the_wire(*burst(HEADERS[name], PAYLOAD, 0, 0))) == [
        wire(HEADERS[name], PAYLOAD)
    ]


def test_on_the_wire__leaves_the_rest_alone() -> None:
    frame, offload = burst(INNER, PAYLOAD, 4, 1000)  # a TCP burst
    assert list(capture.on_the_wire(frame, offload)) == [frame]
    assert list(capture.on_the_wire(frame, Offload(0, 0, 0, 0, 0, 0))) == [frame]


def test_write__is_what_a_reader_reads() -> None:
    file = io.BytesIO()
    capture.write_header(file, 100)
    frames = [wire(INNER, PAYLOAD), wire(INNER, b"x")]
    for number, frame in enumerate(frames):
        capture.write_packet(file, 1_700_000_000_123_456_789 + number, frame, 100)
    file.seek(0)
    with PcapReader(file) as reader:  # type: ignore[arg-type]
        found = list(reader)
    assert [bytes(packet) for packet in found] == [frame[:100] for frame in frames]
    assert [packet.wirelen for packet in found] == [len(frame) for frame in frames]
    assert round(found[1].time % 1 * 10**9) == 123_456_790
