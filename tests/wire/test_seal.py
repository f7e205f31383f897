# SPDX-License-Identifier: Apache-2.0
"""The C engine and an independent decoder (seal.py) agree about sealed packets; and the published
test vectors, mrc/connect/vectors.json beside an independent derivation (vectors.py), the C core,
and both sides of the exchange.
"""

from __future__ import annotations

import asyncio
import functools
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import cbuild
import cffi
import pytest
import spake2
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from meetings import A, B, TestAuthority, channels
from wire import seal, vectors
from wire.seal import AEAD, AUTH, Direction, Opened

import mrc.connect.proofs
from mrc._ffi_build import cut_cdef
from mrc.connect import tls
from mrc.connect.identity import Identity, load
from mrc.connect.oob import Channel
from mrc.connect.proofs import Binding, digest_of
from mrc.connect.security import Security
from mrc.connect.tls import Guard
from mrc.engine import native
from mrc.linux.secret import Secret

EPOCH_BITS = 6  # the smallest: a new key after 64 packets
PATH_MTU = 256
MEMORY_BYTES = 1 << 16
PORT = 4791
_SEALS = """
int mrc_qp_set_seal(mrc_engine *engine, uint32_t qpn, const struct mrc_seal_attr *attr);
const struct mrc_aead *mrc_aead_ipsec_mb(void);
const struct mrc_aead *mrc_aead_libcrypto(void);
void vector_seal(const struct mrc_aead *aead, const struct mrc_seal_attr *attr, uint32_t qpn,
                 uint64_t counter, uint32_t ev, const uint8_t *packet, uint32_t header_bytes,
                 uint32_t imm_bytes, uint32_t payload_bytes, uint32_t pad, uint8_t *out);
int vector_open(const struct mrc_aead *aead, const struct mrc_seal_attr *attr, uint32_t qpn,
                uint32_t ev, uint8_t *packet, size_t bytes, uint64_t *counter);
"""


@functools.cache
def core() -> tuple[Any, Any]:
    """The compiled core."""
    ffi = cffi.FFI()
    ffi.cdef(cut_cdef((cbuild.CSRC / "mrc.h").read_text()) + _SEALS)
    io, extra = cbuild.CSRC / "io", Path(__file__).with_name("vectors.c")
    sources = [*cbuild._sources("core"), io / "aead.c", extra]
    return ffi, ffi.dlopen(str(cbuild.shared_library(sources, "sealing")))


def aead(library: str) -> Any:
    """The ciphers of a library; raises LookupError."""
    ffi, lib = core()
    found = getattr(lib, f"mrc_aead_{library}")()
    if found == ffi.NULL:
        raise LookupError(f"this host has no {library}")
    return found


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the QP: its numbers, its EVs on ports 1 and 2, the secret by which it sends."""

    qpn: int
    secret: bytes
    address: bytes
    evs: tuple[int, int]
    rkey: int = 7


def _side(side: str, host: int) -> Side:
    address = b"\xfd" + bytes(14) + bytes([host])
    return Side(vectors.QPNS[side], vectors.direction(side).secret, address, vectors.EVS[side])


ONE, OTHER = _side("connects", 1), _side("listens", 2)
Sent = tuple[int, bytes]
"""an EV and a packet"""


class Engine:
    """The engine of one side; time is the test's."""

    def __init__(self, library: str, mode: int, own: Side, peer: Side) -> None:
        self.ffi, self._lib = core()
        self.own, self._peer, self.mode = own, peer, mode
        self.now_ns = 1_000_000
        config = {
            "seed": 1, "max_qps": 1, "ports": 2, "seal_epoch_bits": EPOCH_BITS,
            "aead": aead(library),
        }  # fmt: skip
        self._engine = self._lib.mrc_engine_create(self._struct("engine_config", config))
        assert self._engine != self.ffi.NULL
        self.memory = self.ffi.new("uint8_t[]", MEMORY_BYTES)
        self._bursts = self.ffi.new("struct mrc_burst[64]")
        self._create(mode)

    def _struct(self, name: str, fields: dict[str, Any]) -> Any:
        return self.ffi.new(f"struct mrc_{name} *", fields)

    def _done(self, code: int) -> None:
        assert code == 0, code

    @property
    def address(self) -> int:
        return int(self.ffi.cast("uintptr_t", self.memory))

    def _create(self, mode: int) -> None:
        lib, qpn, own, peer = self._lib, self.own.qpn, self.own, self._peer
        create = {"qpn": qpn, "sq_depth": 64, "mpr": 128, "max_wimm": 8}
        rtr = self._struct("qp_rtr_attr", {"dest_qpn": peer.qpn})
        rts = self._struct("qp_rts_attr", {
            "path_mtu": PATH_MTU, "peer_mpr": 128, "peer_max_wimm": 8, "timeout": 14,
        })  # fmt: skip
        seal = self._struct("seal_attr", {
            "mode": mode, "peer_qpn": peer.qpn, "send": own.secret, "receive": peer.secret,
        })  # fmt: skip
        evs = self.ffi.new("struct mrc_ev_attr[]", [
            {"src": own.address, "dst": peer.address, "ev": ev, "dport": PORT, "port": port,
             "family": 6} for port, ev in enumerate(own.evs, 1)
        ])  # fmt: skip
        sources = self.ffi.new("struct mrc_peer_source[]", [
            {"address": peer.address, "sport": ev >> 16} for ev in peer.evs
        ])  # fmt: skip
        access = lib.MRC_ACCESS_LOCAL_READ | lib.MRC_ACCESS_REMOTE_WRITE
        address, rkey = self.address, self.own.rkey
        self._done(lib.mrc_mr_register(self._engine, address, MEMORY_BYTES, rkey, access, 0))
        self._done(lib.mrc_qp_create(self._engine, self._struct("qp_create_attr", create)))
        self._move(lib.MRC_QP_INIT)
        self._done(lib.mrc_qp_set_seal(self._engine, qpn, seal))
        self._done(lib.mrc_qp_set_evs(self._engine, qpn, evs, 2))
        self._done(lib.mrc_qp_set_peer(self._engine, qpn, sources, 2))
        self._move(lib.MRC_QP_RTR, rtr=rtr)
        self._move(lib.MRC_QP_RTS, rts=rts)

    def _move(self, state: int, *, rtr: Any = None, rts: Any = None) -> None:
        null = self.ffi.NULL
        self._done(
            self._lib.mrc_qp_modify(
                self._engine, self.own.qpn, state, rtr or null, rts or null, self.now_ns
            )
        )

    def close(self) -> None:
        self._lib.mrc_engine_destroy(self._engine)

    def write(self, to: int, data: bytes, imm: int | None = None) -> None:
        """Posts a write to an address of the peer."""
        self.ffi.memmove(self.memory, data, len(data))
        wr = {"local": self.address, "va": to, "lkey": self.own.rkey, "rkey": self._peer.rkey,
              "bytes": len(data), "opcode": self._lib.MRC_WR_WRITE, "imm": imm or 0}  # fmt: skip
        if imm is not None:
            wr["opcode"] = self._lib.MRC_WR_WRITE_IMM
        posted = self._struct("wr", wr)
        self._done(self._lib.mrc_qp_post(self._engine, self.own.qpn, posted, 1, self.now_ns))

    def probe(self, packet_bytes: int = 0) -> None:
        """Probes the EV."""
        fields = {"qpn": self.own.qpn, "bytes": packet_bytes, "timeout_ns": 10**9}
        probe = self._struct("probe_attr", fields)
        assert self._lib.mrc_engine_probe_evs(self._engine, probe, 1, self.now_ns) == 1

    def port_up(self, port: int, *, up: bool) -> None:
        self._lib.mrc_engine_port_up(self._engine, port, up, self.now_ns)

    def sent(self) -> list[Sent]:
        """The packets that are due now."""
        made: list[Sent] = []
        while True:
            n = self._lib.mrc_engine_transmit(self._engine, self._bursts, 64, self.now_ns)
            if n == 0:
                return made
            for burst in self._bursts[0:n]:
                ev = burst.sport << 16 | burst.flow_label
                made += [(ev, packet) for packet in self._packets(burst)]
            taken = self.ffi.new("int[]", [1] * n)
            self._lib.mrc_engine_commit(self._engine, self._bursts, taken, n, self.now_ns)

    def _packets(self, burst: Any) -> Iterator[bytes]:
        at = 0
        for packet in burst.packets[0 : burst.n_packets]:
            payload, n = packet.payload, packet.payload_bytes
            total = packet.header_bytes + n + packet.trailer_bytes
            if burst.staged != self.ffi.NULL:
                yield bytes(self.ffi.buffer(burst.staged + at, total))
                at += total
                continue
            yield (
                bytes(self.ffi.buffer(packet.header, packet.header_bytes))
                + (bytes(self.ffi.buffer(payload, n)) if n else b"")
                + bytes(self.ffi.buffer(packet.trailer, packet.trailer_bytes))
            )

    def later(self, ns: int) -> None:
        """Time goes on."""
        self.now_ns += ns
        self._lib.mrc_engine_expire(self._engine, self.now_ns)

    def receive(self, ev: int, packet: bytes) -> str:
        """A packet of the peer arrives; the drop reason or ""."""
        meta = self._struct("meta", {
            "src": self._peer.address, "dst": self.own.address, "sport": ev >> 16,
            "flow_label": ev & 0xFFFF, "dport": PORT, "family": 6,
            "port": 1 + self._peer.evs.index(ev),
        })  # fmt: skip
        n = len(packet)
        held = self.ffi.new("uint8_t[]", packet)
        drop = self._lib.mrc_engine_receive(self._engine, held, n, n, meta, self.now_ns)
        return self.ffi.string(self._lib.mrc_drop_name(drop)).decode() if drop else ""

    def completions(self) -> list[Any]:
        """Opcode, status and immediate of what has completed."""
        wcs = self.ffi.new("struct mrc_wc[64]")
        n = self._lib.mrc_cq_poll(self._engine, wcs, 64)
        return [(wc.opcode, wc.status, wc.imm) for wc in wcs[0:n]]

    def answered_probes(self) -> int:
        """Probes that have been answered since the last call."""
        events = self.ffi.new("struct mrc_event[64]")
        n = self._lib.mrc_engine_events(self._engine, events, 64)
        kind = self._lib.MRC_EVENT_PROBE
        return sum(event.type == kind and event.result == 0 for event in events[0:n])


@contextmanager
def engine(library: str, mode: int, own: Side, peer: Side) -> Iterator[Engine]:
    made = Engine(library, mode, own, peer)
    try:
        yield made
    finally:
        made.close()


# ---- Sealed packets ------------------------------------------------------------------------------


LIBRARIES = ("libcrypto", "ipsec_mb")
FROM_ONE, FROM_OTHER = Direction(ONE.secret, EPOCH_BITS), Direction(OTHER.secret, EPOCH_BITS)
REQUEST, RESPONSE, SACK = 0xD8, 0xD9, 0xDC
WRITE_FIRST, WRITE_ONLY_IMM = 0xC6, 0xCB


@pytest.fixture(params=[(library, mode) for library in LIBRARIES for mode in (AEAD, AUTH)])
def sides(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, Engine]]:
    library, mode = request.param
    try:
        with engine(library, mode, ONE, OTHER) as one, engine(library, mode, OTHER, ONE) as other:
            yield one, other
    except LookupError as error:
        pytest.skip(str(error))


def opened(engine: Engine, direction: Direction, sent: list[Sent]) -> list[Opened]:
    """Opens packets of an engine; seals them again, which gives the same bytes."""
    found = [direction.open(packet, ev) for ev, packet in sent]
    for (ev, packet), each in zip(sent, found, strict=True):
        assert each.mode == engine.mode
        assert direction.close(each, ev) == packet
    return found


def passed(to: Engine, sent: list[Sent]) -> None:
    for ev, packet in sent:
        assert to.receive(ev, packet) == ""


def test_secrets__of_both_directions() -> None:
    randoms = secrets.token_bytes(32), secrets.token_bytes(32)
    first, second = map(Secret.copy, randoms)
    out = seal.qp_secret(randoms, ONE.qpn, OTHER.qpn)
    back = seal.qp_secret(randoms, OTHER.qpn, ONE.qpn)
    one = native.secret_struct("mrc_seal_attr", peer_qpn=OTHER.qpn)
    native.agree(one, ONE.qpn, first.bytes, second.bytes, first=True)
    assert (bytes(one.send), bytes(one.receive)) == (out, back)
    other = native.secret_struct("mrc_seal_attr", peer_qpn=ONE.qpn)
    native.agree(other, OTHER.qpn, second.bytes, first.bytes, first=False)
    assert (bytes(other.send), bytes(other.receive)) == (back, out)


def test_engine__seals_what_the_decoder_opens(sides: tuple[Engine, Engine]) -> None:
    """Writes of several packets, with immediates and padding, and their answers; many epochs."""
    one, other = sides
    out: list[Opened] = []
    back: list[Opened] = []
    for turn in range(40):
        data = secrets.token_bytes(3 * PATH_MTU + turn % 4 + 1)
        one.write(other.address, data, imm=turn if turn % 2 else None)
        before, done = len(out), []
        for _ in range(20):
            sent = one.sent()
            out += opened(one, FROM_ONE, sent)
            passed(other, sent)
            answers = other.sent()
            back += opened(other, FROM_OTHER, answers)
            passed(one, answers)
            if done := one.completions():
                break
            one.later(1_000_000)
            other.later(1_000_000)
        assert [status for _, status, _ in done] == [0]
        assert [imm for _, _, imm in other.completions()] == ([turn] if turn % 2 else [])
        assert bytes(other.memory[0 : len(data)]) == data
        assert b"".join(payload_of(each) for each in out[before:]) == data
    assert {WRITE_FIRST, SACK} <= {each.body[0] for each in out + back}
    for packets, to in ((out, OTHER), (back, ONE)):
        assert {each.qpn for each in packets} == {to.qpn}
        assert [each.counter for each in packets] == list(range(len(packets)))
    assert len(out) >= 160 and len(back) >= 40, "several epochs of 64 packets"


def test_golden__packets(sides: tuple[Engine, Engine]) -> None:
    """The engine makes the first two packets of the published vectors."""
    one, _ = sides
    published = json.loads(vectors.FILE.read_text())["packets"]
    golden = [bytes.fromhex(each["sealed"]) for each in published
              if vectors.MODES[each["mode"]] == one.mode][:2]  # fmt: skip
    one.write(0x1000, b"golden", imm=0x0102)
    sent = one.sent()
    one.probe()
    sent += one.sent()
    assert [packet for _, packet in sent] == golden


def payload_of(packet: Opened) -> bytes:
    if not seal.FIRST_DATA <= packet.body[0] <= seal.LAST_DATA:
        return b""
    imm = seal.IMM_BYTES if packet.body[0] in seal.WITH_IMM else 0
    pad = packet.body[1] >> 4 & 3
    return packet.body[seal.clear_bytes(packet.body) + imm : len(packet.body) - pad]


def test_engine__seals_endpoint_packets(sides: tuple[Engine, Engine]) -> None:
    """Probes of an EV, small and padded, their answers, and port status."""
    one, other = sides
    for size in (0, 700):
        one.probe(size)
        asked = one.sent()
        (probe,) = opened(one, FROM_ONE, asked)
        assert (probe.body[0], probe.qpn) == (REQUEST, OTHER.qpn)
        assert len(asked[0][1]) >= size
        passed(other, asked)
        answered = other.sent()
        (answer,) = opened(other, FROM_OTHER, answered)
        assert answer.body[0] == RESPONSE
        passed(one, answered)
        assert one.answered_probes() == 1
    one.port_up(2, up=False)
    one.later(1_000_000)
    packets = opened(one, FROM_ONE, one.sent())
    reports = [each.body for each in packets if each.body[0] == REQUEST]
    assert reports and all(body[5:8] == b"\0\0\2" for body in reports)


@pytest.mark.parametrize("epoch", [0, 1])
def test_engine__opens_what_the_encoder_seals(sides: tuple[Engine, Engine], epoch: int) -> None:
    """A write with an immediate, and a probe, in the first epoch and the one that may follow."""
    one, other = sides
    body = bytes([WRITE_ONLY_IMM, 0x31]) + b"\xff\xff\0" + OTHER.qpn.to_bytes(3, "big")
    body += bytes.fromhex("80 0000000000 0000") + other.address.to_bytes(8, "big")
    body += OTHER.rkey.to_bytes(4, "big") + (5).to_bytes(4, "big") + b"\0\0\1\2" + b"bytes\0\0\0"
    counter = epoch << EPOCH_BITS
    packet = FROM_ONE.close(Opened(body, one.mode, OTHER.qpn, counter), ONE.evs[0])
    for changed in (counter + 1, counter | 1 << 40):
        wrong = packet[:-24] + changed.to_bytes(8, "big") + packet[-16:]
        assert other.receive(ONE.evs[0], wrong) in ("SEAL", "REPLAY")
    assert other.receive(ONE.evs[1], packet) == "SEAL", "the tag covers the EV"
    assert other.receive(ONE.evs[0], packet) == ""
    assert bytes(other.memory[0:5]) == b"bytes"
    assert [imm for _, _, imm in other.completions()] == [0x0102]
    assert other.receive(ONE.evs[0], packet) == "DUPLICATE"
    later = one_probe(one)
    probe = FROM_ONE.close(replace(later, counter=counter + 2), ONE.evs[0])
    assert other.receive(ONE.evs[0], probe) == ""
    answers = opened(other, FROM_OTHER, other.sent())
    assert RESPONSE in {each.body[0] for each in answers}


def one_probe(one: Engine) -> Opened:
    one.probe()
    ((ev, packet),) = one.sent()
    return FROM_ONE.open(packet, ev)


def test_decoder__refuses_what_was_changed(sides: tuple[Engine, Engine]) -> None:
    """Otherwise it would prove nothing."""
    one, _ = sides
    one.write(0x1000, b"some bytes of data")
    ((ev, packet),) = one.sent()
    FROM_ONE.open(packet, ev)
    for at in (5, 20, seal.clear_bytes(packet), -17, -1):
        wrong = bytearray(packet)
        wrong[at] ^= 1
        with pytest.raises(InvalidTag):
            FROM_ONE.open(bytes(wrong), ev)
    with pytest.raises(InvalidTag):
        FROM_ONE.open(packet, ev + 1)
    with pytest.raises(InvalidTag):
        FROM_OTHER.open(packet, ev)


# ---- Published vectors ---------------------------------------------------------------------------


PUBLISHED = json.loads(vectors.FILE.read_text())
KEYS, PROOFS = PUBLISHED["keys"], PUBLISHED["proofs"]
PEER = {"connects": "listens", "listens": "connects"}


def test_file__is_what_the_derivation_gives() -> None:
    assert vectors.vectors() == PUBLISHED, "run tools/vectors"


# ---- Published keys and packets ------------------------------------------------------------------


@pytest.mark.parametrize("side", vectors.SIDES)
def test_core__derives_the_secrets(side: str) -> None:
    other = PEER[side]
    attr = native.secret_struct("mrc_seal_attr", peer_qpn=int(KEYS["qpn"][other], 16))
    own, peer = (Secret.copy(bytes.fromhex(KEYS["random"][each])) for each in (side, other))
    first = side == "connects"
    native.agree(attr, int(KEYS["qpn"][side], 16), own.bytes, peer.bytes, first=first)
    secrets = {each["sender"]: each["secret"] for each in KEYS["directions"]}
    assert bytes(attr.send).hex() == secrets[side]
    assert bytes(attr.receive).hex() == secrets[other]


@pytest.mark.parametrize("side", vectors.SIDES)
def test_hello__carries_the_random_bytes_in_hexadecimal_digits(side: str) -> None:
    text = KEYS["random"][side]
    frame = bytearray(json.dumps({"type": "hello", "seal_random": text}).encode())
    (found,) = tls.cut_random(frame)
    assert bytes(found.bytes).hex() == text


@pytest.fixture(params=LIBRARIES)
def ciphers(request: pytest.FixtureRequest) -> Any:
    try:
        return aead(request.param)
    except LookupError as error:
        pytest.skip(str(error))


def seal_attr(vector: dict[str, Any], side: str) -> tuple[Any, int]:
    """The attributes of a side of the QP, and its QPN."""
    ffi, _ = core()
    secrets = {each["sender"]: bytes.fromhex(each["secret"]) for each in KEYS["directions"]}
    other = PEER[side]
    fields = {
        "mode": vectors.MODES[vector["mode"]], "peer_qpn": int(KEYS["qpn"][other], 16),
        "send": secrets[side], "receive": secrets[other],
    }  # fmt: skip
    return ffi.new("struct mrc_seal_attr *", fields), int(KEYS["qpn"][side], 16)


def opened_bytes(vector: dict[str, Any]) -> bytes:
    parts = ("headers", "immediate", "payload", "padding")
    return b"".join(bytes.fromhex(vector[part]) for part in parts)


@pytest.mark.parametrize("vector", PUBLISHED["packets"], ids=lambda each: each["mode"])
def test_core__seals_and_opens(vector: dict[str, Any], ciphers: Any) -> None:
    ffi, lib = core()
    sealed, ev = bytes.fromhex(vector["sealed"]), int(vector["ev"], 16)
    parts = {part: len(vector[part]) // 2 for part in ("headers", "immediate", "payload")}
    made = ffi.new("uint8_t[]", len(sealed))
    lib.vector_seal(
        ciphers, *seal_attr(vector, vector["sender"]), vector["counter"], ev, opened_bytes(vector),
        parts["headers"] + parts["immediate"], parts["immediate"], parts["payload"],
        len(vector["padding"]) // 2, made,
    )  # fmt: skip
    assert bytes(made).hex() == vector["sealed"]

    receiver = seal_attr(vector, PEER[vector["sender"]])
    packet, counter = ffi.new("uint8_t[]", sealed), ffi.new("uint64_t *")
    assert lib.vector_open(ciphers, *receiver, ev, packet, len(sealed), counter) == 0
    clear = len(sealed) - seal.SEAL_BYTES - seal.TAG_BYTES
    assert bytes(packet[0:clear]) == opened_bytes(vector)
    assert counter[0] == vector["counter"]
    packet = ffi.new("uint8_t[]", sealed)
    assert lib.vector_open(ciphers, *receiver, ev ^ 1, packet, len(sealed), counter) != 0


# ---- Published proofs ----------------------------------------------------------------------------


@pytest.fixture
def identities(tmp_path: Path) -> dict[str, Identity]:
    made = {}
    for side in vectors.SIDES:
        key, certificate = vectors.private_key(side), vectors.certificate(side)
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path = tmp_path / f"{side}.pem"
        path.touch(mode=0o600)
        path.write_bytes(text + certificate.public_bytes(Encoding.PEM))
        made[side] = load(path)
    return made


@pytest.mark.parametrize("side", vectors.SIDES)
def test_identity__as_published(side: str, identities: dict[str, Identity]) -> None:
    vector, identity = PUBLISHED["identities"][side], identities[side]
    assert identity.public.hex() == vector["public"]
    assert identity.fingerprint == vector["fingerprint"]
    assert identity.certificate.hex() == vector["certificate"]


@pytest.mark.parametrize("side", vectors.SIDES)
def test_binding__covers_the_connection(side: str) -> None:
    server = digest_of(bytes.fromhex(PUBLISHED["identities"]["listens"]["certificate"]))
    binding = Binding(server, vectors.NONCES["listens"], vectors.NONCES["connects"])
    assert binding.over(side).hex() == PUBLISHED["covered"][side]


def required(way: str, identities: dict[str, Identity], folder: Path) -> tuple[Security, Security]:
    """What the connecting and the listening side require."""
    ours, theirs = (identities[side] for side in vectors.SIDES)
    if way == "key":
        return (Security(identity=ours.path, peer=theirs.fingerprint),
                Security(identity=theirs.path, allow=(ours.fingerprint,)))  # fmt: skip
    if way == "secret":
        secret = bytes.fromhex(PROOFS["secret"]["secret"])
        return Security(secret=secret), Security(identity=theirs.path, secret=secret)
    if way == "code":
        code = PROOFS["code"]["code"]
        return Security(code=code), Security(identity=theirs.path, code=code)
    ca = TestAuthority(folder)
    return (Security(authority=ca.issue(A), peer=B), Security(authority=ca.issue(B), allow=(A,)))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The random numbers of both sides are those of the vectors."""
    nonces: Iterator[bytes] = iter((vectors.NONCES["listens"], vectors.NONCES["connects"]))
    monkeypatch.setattr(mrc.connect.proofs, "nonce", lambda: next(nonces))
    for side, name in (("connects", "SPAKE2_A"), ("listens", "SPAKE2_B")):
        number = bytes.fromhex(PROOFS["code"]["random"][side])
        made = partial(getattr(spake2, name), entropy_f=lambda _, number=number: number)
        monkeypatch.setattr(spake2, name, made)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The messages inside TLS."""
    found: list[dict[str, Any]] = []
    send = Channel.send

    async def record(channel: Channel, kind: str, **fields: Any) -> None:
        if kind != "tls":
            found.append({"type": kind, **fields})
        await send(channel, kind, **fields)

    monkeypatch.setattr(Channel, "send", record)
    return found


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("way", PROOFS)
async def test_proof__of_both_sides(
    way: str, identities: dict[str, Identity], said: list[dict[str, Any]], tmp_path: Path
) -> None:
    connecting, listening = map(Guard, required(way, identities, tmp_path))
    async with channels() as (one, other):
        await asyncio.gather(connecting.connect(one), listening.accept(other))
    assert said == PROOFS[way]["messages"]
    if way == "code":
        session = PROOFS["code"]["session"]
        for guard in (connecting, listening):
            secret = guard.secret(session["id"])
            assert secret is not None and bytes(secret.bytes).hex() == session["secret"]
