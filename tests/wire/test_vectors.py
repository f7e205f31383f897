# SPDX-License-Identifier: Apache-2.0
"""The published test vectors: mrc/trust/vectors.json beside an independent derivation (vectors.py),
the C core, and both sides of the exchange.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import spake2
from authority import A, B, TestAuthority
from channels import channels
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from wire import seal, vectors
from wire.sealing_engine import aead, core

import mrc.trust.proofs
from mrc.connect import tls
from mrc.connect.oob import Channel
from mrc.connect.tls import Guard
from mrc.engine import native
from mrc.trust.identity import Identity, load
from mrc.trust.proofs import Binding, digest_of
from mrc.trust.secret import Secret
from mrc.trust.security import Security

PUBLISHED = json.loads(vectors.FILE.read_text())
KEYS, PROOFS = PUBLISHED["keys"], PUBLISHED["proofs"]
LIBRARIES = ("libcrypto", "ipsec_mb")
OTHER = {"connects": "listens", "listens": "connects"}


def test_file__is_what_the_derivation_gives() -> None:
    assert vectors.vectors() == PUBLISHED, "run tools/vectors"


# ---- Keys and packets ------------------------------------------------------------------------


@pytest.mark.parametrize("side", vectors.SIDES)
def test_core__derives_the_secrets(side: str) -> None:
    other = OTHER[side]
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


def attr(vector: dict[str, Any], side: str) -> tuple[Any, int]:
    """The attributes of a side of the QP, and its QPN."""
    ffi, _ = core()
    secrets = {each["sender"]: bytes.fromhex(each["secret"]) for each in KEYS["directions"]}
    other = OTHER[side]
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
        ciphers, *attr(vector, vector["sender"]), vector["counter"], ev, opened_bytes(vector),
        parts["headers"] + parts["immediate"], parts["immediate"], parts["payload"],
        len(vector["padding"]) // 2, made,
    )  # fmt: skip
    assert bytes(made).hex() == vector["sealed"]

    receiver = attr(vector, OTHER[vector["sender"]])
    packet, counter = ffi.new("uint8_t[]", sealed), ffi.new("uint64_t *")
    assert lib.vector_open(ciphers, *receiver, ev, packet, len(sealed), counter) == 0
    clear = len(sealed) - seal.SEAL_BYTES - seal.TAG_BYTES
    assert bytes(packet[0:clear]) == opened_bytes(vector)
    assert counter[0] == vector["counter"]
    packet = ffi.new("uint8_t[]", sealed)
    assert lib.vector_open(ciphers, *receiver, ev ^ 1, packet, len(sealed), counter) != 0


# ---- Proofs ----------------------------------------------------------------------------------


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


def sides(way: str, identities: dict[str, Identity], folder: Path) -> tuple[Security, Security]:
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
    monkeypatch.setattr(mrc.trust.proofs, "nonce", lambda: next(nonces))
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
    connecting, listening = map(Guard, sides(way, identities, tmp_path))
    async with channels() as (one, other):
        await asyncio.gather(connecting.connect(one), listening.accept(other))
    assert said == PROOFS[way]["messages"]
    if way == "code":
        session = PROOFS["code"]["session"]
        for guard in (connecting, listening):
            secret = guard.secret(session["id"])
            assert secret is not None and bytes(secret.bytes).hex() == session["secret"]
