# SPDX-License-Identifier: Apache-2.0
"""Which secrets are in the memory of a process, and in its core dumps: during a QP, and after it.

The process is holder.py. This one is its peer, and computes the secrets from what both say inside
TLS: it shares no code with mrc, and the holder's memory has no copies of this test's.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import re
import resource
import signal
import ssl
import struct
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from io import FileIO
from itertools import product
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from msgspec import Struct
from slowness import PATIENCE
from wire import seal

import mrc
from mrc.connect import proofs, tls
from mrc.connect.identity import load
from mrc.connect.security import Security
from mrc.engine import native
from mrc.linux.secret import Secret

HOLDER = Path(__file__).with_name("holder.py")
CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")
ONLY_HEADERS = 0x10
CODE = "maple-rocket-cider"
EPOCHS = 3  # whose secrets follow from those of a QP at once
PADS = {"": 0, ", ipad": 0x36, ", opad": 0x5C}  # as HMAC keeps a key


class Plain(ssl.SSLObject):
    """What this side says and hears inside TLS."""

    said = b""
    heard = b""

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        got = super().read(len, buffer)
        Plain.heard += got if buffer is None else bytes(buffer[:got])
        return got

    def write(self, data: Any) -> int:
        Plain.said += bytes(data)
        return super().write(data)


class Case(Struct):
    """One holder: whether it connects or listens, by what it proves itself, and its files."""

    side: str
    way: str
    folder: Path
    spake: list[bytes]  # keys of SPAKE2

    @property
    def file(self) -> Path:
        return self.folder / "holder.pem" if self.way == "key" else self.folder / self.way

    def make(self) -> Security:
        """Writes the holder's files; returns what its peer needs."""
        identity = load(self.folder / "holder.pem")
        peer = self.folder / "peer.pem"
        if self.way == "key":
            known = identity.fingerprint if self.side == "listens" else ""
            return Security(identity=peer, peer=known, allow_any=True)
        content = os.urandom(32) if self.way == "secret" else CODE.encode()
        self.file.write_bytes(content)
        self.file.chmod(0o600)
        if self.way == "secret":
            return Security(identity=peer, secret=content)
        return Security(identity=peer, code=CODE)

    def of_qp(self) -> dict[str, bytes]:
        """The secrets of the QP, by both hellos."""
        ours, theirs = attributes(Plain.said), attributes(Plain.heard)
        one, other = (ours, theirs) if self.side == "listens" else (theirs, ours)
        randoms = bytes.fromhex(one["seal_random"]), bytes.fromhex(other["seal_random"])
        found = {"random of the connecting": randoms[0], "random of the listening": randoms[1]}
        found |= {f"{name} side, hex": each.hex().encode() for name, each in found.items()}
        found["key of both"] = hmac.digest(b"mrc seal 1", b"".join(randoms), "sha256")
        for name, sender, receiver in (("in", ours, theirs), ("out", theirs, ours)):
            secret = seal.qp_secret(randoms, sender["qpn"], receiver["qpn"])
            for epoch in range(EPOCHS):
                found[f"secret {epoch} {name}"] = seal.epoch_secret(secret, epoch)
                found[f"key {epoch} {name}"] = seal.epoch_keys(secret, epoch)[0]
        return found

    def lasting(self) -> dict[str, bytes]:
        """The secrets by which the holder proves itself, also later."""
        if self.way == "secret":
            shared = self.file.read_bytes()
        elif self.way == "code":
            shared = hmac.digest(self.spake[0], b"mrc session", "sha256")
        else:
            return {"PEM of the identity": self.file.read_bytes().splitlines()[1]}
        found = {f"shared{name}": bytes(b ^ pad for b in shared) for name, pad in PADS.items()}
        return found | {f"SPAKE2 {number}": key for number, key in enumerate(self.spake)}

    def of_openssl(self, log: Path) -> dict[str, bytes]:
        """Secrets that only OpenSSL holds."""
        key = load_pem_private_key((self.folder / "holder.pem").read_bytes(), None)
        lines = (line.split() for line in log.read_text().splitlines() if line[0] != "#")
        found = {name: bytes.fromhex(secret) for name, _, secret in lines if "_0" in name}
        return found | {"identity": key.private_bytes_raw()}  # type: ignore[union-attr]


def attributes(stream: bytes) -> dict[str, Any]:
    """The attributes in the hello among the frames of a stream."""
    while stream:
        (length,) = struct.unpack(">I", stream[:4])
        message = json.loads(stream[4 : 4 + length])
        if message["type"] == "hello":
            found: dict[str, Any] = message["attributes"]
            return found
        stream = stream[4 + length :]
    raise AssertionError("no hello")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Records what this process says inside TLS, and the secrets of TLS in this file."""
    path, usual = tmp_path / "tls", tls._context

    def logged(protocol: int) -> ssl.SSLContext:
        context = usual(protocol)
        context.keylog_filename = str(path)
        return context

    monkeypatch.setattr(tls, "_context", logged)
    monkeypatch.setattr(ssl.SSLContext, "sslobject_class", Plain)
    monkeypatch.setattr(Plain, "said", b"")
    monkeypatch.setattr(Plain, "heard", b"")
    return path


# Each way with each side; by default each way and each side once.
QUICK = (("connects", "secret"), ("listens", "key"), ("connects", "code"))
CASES = [
    pytest.param(each, marks=[] if each in QUICK else [pytest.mark.slow])
    for each in product(("connects", "listens"), ("secret", "key", "code"))
]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    side, way = request.param
    made, usual = Case(side, way, tmp_path, []), proofs.Guess.key

    def recorded(guess: proofs.Guess, message: bytes) -> Secret:
        key = usual(guess, message)
        made.spake.append(bytes(key.bytes))
        return key

    monkeypatch.setattr(proofs.Guess, "key", recorded)
    return made


@asynccontextmanager
async def started(case: Case, port: int, library: str) -> AsyncIterator[Process]:
    """A holder that listens, or connects to this port."""
    side = "listens" if case.side == "listens" else str(port)
    environ = os.environ | {"MRC_IDENTITY": str(case.folder / "holder.pem"), "MRC_AEAD": library}
    holder = await asyncio.create_subprocess_exec(
        sys.executable, HOLDER, side, case.way, case.file,
        stdin=PIPE, stdout=PIPE, env=environ, cwd=case.folder,
    )  # fmt: skip
    try:
        yield holder
    finally:
        if holder.returncode is None:
            holder.kill()
        await holder.wait()


async def line(holder: Process) -> str:
    assert holder.stdout is not None
    return (await holder.stdout.readline()).decode().strip()


def go_on(holder: Process) -> None:
    assert holder.stdin is not None
    holder.stdin.write(b"\n")


@asynccontextmanager
async def meeting(case: Case, library: str) -> AsyncIterator[tuple[Process, mrc.QP]]:
    """A holder with an open QP, and this side's end of it."""
    config = mrc.ContextConfig(interfaces=("lo",), security=case.make())
    async with (
        asyncio.timeout(PATIENCE),
        mrc.open(config) as context,
        context.listen("127.0.0.1", 0) as listener,
        started(case, listener.port, library) as holder,
    ):
        if case.side == "listens":
            qp = await context.connect("127.0.0.1", int(await line(holder)))
        else:
            qp = await listener.accept()
        await qp.write(imm=8)
        assert await line(holder) == "open"
        yield holder, qp


async def measured(case: Case, log: Path, library: str) -> tuple[Found, Found]:
    """What was found while the QP was open, and after its end."""
    async with meeting(case, library) as (holder, qp):
        secrets = case.of_qp() | case.lasting() | case.of_openssl(log)
        during = remains(holder.pid, secrets)
        go_on(holder)
        await qp.close()
        assert await line(holder) == "closed"
        after = remains(holder.pid, secrets)
        go_on(holder)
        assert await holder.wait() == 0
    return during, after


@pytest.mark.more
async def test_memory__keeps_what_the_readme_says(case: Case, log: Path) -> None:
    library = native.aead_name()
    if library != "IPsec-MB":
        pytest.skip("this host has no IPsec-MB, whose keys are where mrc wants them")
    during, after = await measured(case, log, library)
    of_openssl = set(case.of_openssl(log))
    assert during.dumped <= of_openssl and "SERVER_TRAFFIC_SECRET_0" in during.dumped
    assert ("identity" in during.dumped) == (case.side == "listens")
    assert {"key 0 out", "key 0 in"} <= during.hidden, "this finds secrets where they are"
    assert after.dumped <= of_openssl
    assert not after.hidden & set(case.of_qp())
    if case.way == "secret":
        assert "shared" in after.hidden, "the process proves itself by it again"


@pytest.mark.more
@pytest.mark.parametrize("case", [("connects", "secret")], indirect=True)
async def test_memory__libcrypto_keeps_the_keys_of_open_qps(case: Case, log: Path) -> None:
    during, after = await measured(case, log, "libcrypto")
    keys = {"key 0 in", "key 0 out", "key 1 in", "key 1 out"}
    assert during.dumped <= keys | set(case.of_openssl(log)) and during.dumped & keys
    assert after.dumped <= set(case.of_openssl(log))
    assert not after.hidden & set(case.of_qp())


# ---- Core dumps that the kernel writes ----------------------------------------------------------


def abort(process: Process) -> None:
    """Lets the kernel write a core dump into the folder in which the process runs."""
    if CORE_PATTERN.read_text().strip() != "core":
        pytest.skip("this host's core dumps go elsewhere")
    hard = resource.prlimit(process.pid, resource.RLIMIT_CORE)[1]
    if hard != resource.RLIM_INFINITY:
        pytest.skip("this user may not have core dumps")
    resource.prlimit(process.pid, resource.RLIMIT_CORE, (hard, hard))
    process.send_signal(signal.SIGABRT)


def in_cores(process: Process) -> int:
    """The kinds of memory that a core dump holds: bits of core(5)."""
    return int(Path(f"/proc/{process.pid}/coredump_filter").read_text(), 16)


def dumped(folder: Path) -> bytes:
    (path,) = folder.glob("core*")
    return path.read_bytes()


@pytest.mark.more
@pytest.mark.parametrize("case", [("listens", "secret")], indirect=True)
async def test_core__of_a_library_user(case: Case, log: Path) -> None:
    async with meeting(case, native.aead_name() or "") as (holder, qp):
        abort(holder)
        await holder.wait()
        secrets = case.of_qp() | case.lasting() | case.of_openssl(log)
        await qp.abort()
    core = dumped(case.folder)
    found = {name for name, secret in secrets.items() if secret in core}
    assert "SERVER_TRAFFIC_SECRET_0" in found, "the dump is whole"
    assert {name for name in found if not name.startswith("key")} <= set(case.of_openssl(log))


async def test_core__of_a_command_holds_no_memory(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(os.urandom(32))
    secret.chmod(0o600)
    command = [sys.executable, "-m", "mrc", "recv", "--secret", str(secret), "--port", "0"]
    environ = os.environ | {"MRC_IDENTITY": str(tmp_path / "key"), "MRC_INSECURE": ""}
    process = await asyncio.create_subprocess_exec(
        *command, "--output", tmp_path / "inbox", stderr=PIPE, env=environ, cwd=tmp_path
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while b"listening" not in (told := await process.stderr.readline()):
                assert told, "it has ended"
        assert in_cores(process) == ONLY_HEADERS
        abort(process)
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    core = dumped(tmp_path)
    assert core.startswith(b"\x7fELF")
    assert secret.read_bytes() not in core and b"mrc.trust" not in core


# ---- the memory of another process ---------------------------------------------------------------

_RANGE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r(.).. \S+ \S+ \S+ *(.*)")
_PIECE, _LONGEST = 1 << 16, 64  # bytes that are read at once, and of half a secret
_OF_THE_KERNEL = ("[vvar]", "[vvar_vclock]", "[vsyscall]")


class Range(Struct, frozen=True):
    """A range of memory that can be read."""

    begin: int
    end: int
    dumped: bool
    """core dumps hold it, unless the filter of the process leaves out all memory of its kind"""


class Found(Struct):
    """Names of secrets of which half was found, or more."""

    dumped: set[str]
    hidden: set[str]
    """where no core dump holds them"""


def ranges(pid: int) -> Iterator[Range]:
    """What a process may have written: not the text of its libraries."""
    found: re.Match[str] | None = None
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if begins := _RANGE.fullmatch(line):
            of_a_file = begins[4].startswith("/") and begins[3] != "w"
            found = None if of_a_file or begins[4] in _OF_THE_KERNEL else begins
        elif found and line.startswith("VmFlags:"):
            yield Range(int(found[1], 16), int(found[2], 16), "dd" not in line.split())
            found = None


def _read(memory: FileIO, at: int, end: int) -> bytes:
    """The content of a range. Guard pages, which glibc 2.42 has within a range, are 0."""
    content = bytearray()
    while at + len(content) < end:
        memory.seek(at + len(content))
        try:
            content += memory.read(end - at - len(content))
        except OSError:
            content += bytes(min(PAGESIZE, end - at - len(content)))
    return bytes(content)


def remains(pid: int, secrets: Mapping[str, bytes]) -> Found:
    """The secrets in the memory of a process."""
    halves = [
        (name, half)
        for name, secret in secrets.items()
        for half in (secret[: len(secret) // 2], secret[len(secret) // 2 :])
    ]
    found = Found(set(), set())
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for each in ranges(pid):
            for at in range(each.begin, each.end, _PIECE):
                content = _read(memory, at, min(at + _PIECE + _LONGEST, each.end))
                if content != bytes(len(content)):
                    names = {name for name, half in halves if half in content}
                    (found.dumped if each.dumped else found.hidden).update(names)
    return found
