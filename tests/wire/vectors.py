# SPDX-License-Identifier: Apache-2.0
"""Test vectors of the key schedule, the sealed packets and the proofs, for other implementations.

They are derived from fixed inputs with seal.py, hashlib and `cryptography`, without code
of mrc. `tools/vectors` writes them to mrc/connect/vectors.json.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from wire.seal import AEAD, AUTH, Direction, Meeting, Opened, epoch_keys, epoch_secret, qp_secret

FILE = Path(__file__).parents[2] / "mrc" / "connect" / "vectors.json"
Vector = dict[str, Any]
SIDES = ("connects", "listens")
EPOCH_BITS = 21
EPOCHS = (0, 1, 2, 5)
MODES = {"aead": AEAD, "auth": AUTH}
QPNS = {"connects": 0x123456, "listens": 0xABCDEF}
RANDOMS = {"connects": bytes(range(32)), "listens": bytes(range(100, 132))}
EVS = {"connects": (0xC3514321, 0xC3524322), "listens": (0xC3618765, 0xC3628766)}

# name, sender, counter, headers, immediate, payload
PACKETS = (
    ("write only, with an immediate", "connects", 0,
     "cb21ffff00abcdef90000000 0000000003d08001 00000000000010000000000700000006",
     "00000102", b"golden"),
    ("EV probe", "connects", 1,
     "d801ffff0000000200007407 00010000000000000000000003d08001", "", b""),
    ("write middle, with a timestamp; the last counter of epoch 0", "connects", (1 << 21) - 1,
     "c701ffff00abcdef10000000 00000007 12340001 00007f0012345680deadbeef00000100", "", b"midd"),
    ("reliability probe; the first counter of epoch 1", "connects", 1 << 21,
     "de01ffff00abcdef00000000 00000000 fffe0000 beefcdef 12348001", "", b""),
    ("write first, in epoch 5", "connects", (5 << 21) + 7,
     "c601ffff00abcdef00ffffff 00000007 00007f0012345678deadbeef0000000b", "", b"first da"),
    ("SACK", "listens", 0,
     "dc01ffff0012345600000010 00200005 c001abcdcdefbeef 00000010 00080001 8000000000000019"
     " 12340004 000000ff", "", b""),
    ("ACK", "listens", 1, "d101ffff0012345600000007 1f00000c", "", b""),
    ("NACK", "listens", 2,
     "dd01ffff0012345600000011 00000100 c001abcdcdefbeef 00000011 20001234", "", b""),
    ("answer to an EV probe", "listens", 3,
     "d901ffff0000000200000001 00240000" + "00" * 24 + "0300000000000000", "", b""),
)  # fmt: skip

KEYS = {"connects": bytes(range(32, 64)), "listens": bytes(range(64, 96))}
NONCES = {"connects": bytes(range(160, 192)), "listens": bytes(range(192, 224))}
SECRET = bytes(range(224, 256))
CODE = "maple-rocket-cider"
NUMBERS = {"connects": bytes(range(64)), "listens": bytes(range(64, 128))}


def _other(side: str) -> str:
    return SIDES[1 - SIDES.index(side)]


# ---- Keys and packets ------------------------------------------------------------------------


def direction(sender: str) -> Direction:
    """What a side sends."""
    randoms = RANDOMS["connects"], RANDOMS["listens"]
    return Direction(qp_secret(randoms, QPNS[sender], QPNS[_other(sender)]), EPOCH_BITS)


def _epoch(secret: bytes, epoch: int) -> Vector:
    key, iv = epoch_keys(secret, epoch)
    return {
        "epoch": epoch, "secret": epoch_secret(secret, epoch).hex(), "key": key.hex(),
        "iv": iv.hex(),
    }  # fmt: skip


def _direction(sender: str) -> Vector:
    secret = direction(sender).secret
    ends = QPNS[sender].to_bytes(3, "big") + QPNS[_other(sender)].to_bytes(3, "big")
    return {
        "sender": sender,
        "info": (b"mrc direction" + ends).hex(),
        "secret": secret.hex(),
        "epochs": [_epoch(secret, each) for each in EPOCHS],
    }


def keys() -> Vector:
    """From the random bytes of both hellos to the keys of epochs."""
    material = b"".join(RANDOMS[side] for side in SIDES)
    return {
        "random": {side: RANDOMS[side].hex() for side in SIDES},
        "qpn": {side: f"{QPNS[side]:06x}" for side in SIDES},
        "extract": {
            "salt": b"mrc seal 1".hex(),
            "material": material.hex(),
            "secret": hmac.digest(b"mrc seal 1", material, "sha256").hex(),
        },
        "labels": {name: f"mrc {name}".encode().hex() for name in ("key", "iv", "next")},
        "directions": [_direction(side) for side in SIDES],
    }


def packets() -> Iterator[Vector]:
    """Each packet in both modes."""
    for name, sender, counter, headers, immediate, payload in PACKETS:
        clear, imm = bytes.fromhex(headers), bytes.fromhex(immediate)
        padding, ev = bytes(-len(payload) % 4), EVS[sender][0]
        for mode, number in MODES.items():
            opened = Opened(clear + imm + payload + padding, number, QPNS[_other(sender)], counter)
            yield {
                "name": name, "mode": mode, "sender": sender, "ev": f"{ev:08x}",
                "counter": counter, "epoch": counter >> EPOCH_BITS,
                "nonce": direction(sender).nonce(ev, counter).hex(),
                "headers": clear.hex(), "immediate": imm.hex(), "payload": payload.hex(),
                "padding": padding.hex(), "sealed": direction(sender).close(opened, ev).hex(),
            }  # fmt: skip


# ---- Proofs ----------------------------------------------------------------------------------


def private_key(side: str) -> Ed25519PrivateKey:
    """The key of a user on a host."""
    return Ed25519PrivateKey.from_private_bytes(KEYS[side])


def certificate(side: str) -> x509.Certificate:
    """Ed25519 signatures are deterministic, so this is the same at each run."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mrc")])
    begin = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
    key = private_key(side)
    return (
        x509.CertificateBuilder(name, name, key.public_key(), serial_number=1)
        .not_valid_before(begin)
        .not_valid_after(begin.replace(year=2060))
        .sign(key, None)
    )


def _identity(side: str) -> Vector:
    public = private_key(side).public_key().public_bytes_raw()
    digest = base64.b64encode(hashlib.sha256(public).digest()).decode().rstrip("=")
    return {
        "private": KEYS[side].hex(), "public": public.hex(), "fingerprint": f"mrc:SHA256:{digest}",
        "certificate": certificate(side).public_bytes(Encoding.DER).hex(),
    }  # fmt: skip


def covered(side: str) -> bytes:
    """What a proof of this side covers."""
    server = hashlib.sha256(certificate("listens").public_bytes(Encoding.DER)).digest()
    start = b"mrc prove 2 " + side.encode() + b"\0"
    return start + server + NONCES["listens"] + NONCES["connects"]


def _mac(key: bytes, side: str) -> str:
    return hmac.digest(key, covered(side), "sha256").hex()


def _id(secret: bytes) -> str:
    return hashlib.sha256(b"mrc id" + secret).hexdigest()[:16]


def _want(way: str) -> Vector:
    return {"type": "want", "ways": [way], "nonce": NONCES["listens"].hex()}


def _prove(way: str, **fields: str) -> Vector:
    return {"type": "prove", "way": way, "nonce": NONCES["connects"].hex(), **fields}


def _by_key() -> Vector:
    public = private_key("connects").public_key().public_bytes_raw()
    signature = private_key("connects").sign(covered("connects"))
    proof = _prove("key", key=public.hex(), signature=signature.hex())
    return {"messages": [_want("key"), proof, {"type": "proved"}]}


def _by_secret() -> Vector:
    proof = _prove("secret", id=_id(SECRET), mac=_mac(SECRET, "connects"))
    proved = {"type": "proved", "mac": _mac(SECRET, "listens")}
    return {"secret": SECRET.hex(), "messages": [_want("secret"), proof, proved]}


def _by_code() -> Vector:
    """`session` is the secret by which the two processes connect further QPs."""
    meeting = Meeting(CODE.encode(), NUMBERS["connects"], NUMBERS["listens"])
    key, session = meeting.key, hmac.digest(meeting.key, b"mrc session", "sha256")
    said = {side: meeting.message(side).hex() for side in SIDES}
    return {
        "code": CODE,
        "number": f"{meeting.number:064x}",
        "random": {side: NUMBERS[side].hex() for side in SIDES},
        "shared": meeting.shared.hex(),
        "key": key.hex(),
        "session": {"secret": session.hex(), "id": _id(session)},
        "messages": [
            _want("code"),
            _prove("code", message=said["connects"]),
            {"type": "proved", "message": said["listens"], "mac": _mac(key, "listens")},
            {"type": "confirm", "mac": _mac(key, "connects")},
        ],
    }


def _by_authority() -> Vector:
    """TLS itself is the proof."""
    proof = {"type": "prove", "way": "authority", "nonce": ""}
    return {"messages": [_want("authority"), proof, {"type": "proved"}]}


def vectors() -> Vector:
    """All of them. Bytes are hexadecimal digits; `connects` and `listens` are the two sides."""
    return {
        "keys": keys(),
        "packets": list(packets()),
        "identities": {side: _identity(side) for side in SIDES},
        "covered": {side: covered(side).hex() for side in SIDES},
        "proofs": {
            "key": _by_key(), "secret": _by_secret(), "code": _by_code(),
            "authority": _by_authority(),
        },
    }  # fmt: skip
