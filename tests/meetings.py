# SPDX-License-Identifier: Apache-2.0
"""Hosts that have to prove themselves to each other, over loopback: two Contexts, both ends of a
connection of the exchange, and a certificate authority.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from slowness import PATIENCE

import mrc
from mrc.connect.oob import FRAME_BYTES, Channel
from mrc.connect.security import Authority, Security
from mrc.enums import Seal
from mrc.errors import ConnectError


def host(security: Security | None, **options: Any) -> mrc.Opening[mrc.Context]:
    """A Context that requires this."""
    return mrc.open(mrc.ContextConfig(interfaces=("lo",), security=security, **options))


@contextlib.asynccontextmanager
async def waiting(
    security: Security | None, **options: Any
) -> AsyncIterator[tuple[mrc.Context, mrc.Listener]]:
    """A Context that requires this, and listens."""
    async with host(security, **options) as context, context.listen("127.0.0.1", 0) as listener:
        yield context, listener


async def meet(
    connecting: Security | None,
    listening: Security | None,
    *,
    times: int = 1,
    seal: Seal | None = None,
) -> list[tuple[mrc.QP, mrc.QP]]:
    """Connects, sends a few bytes each way, and returns the two ends, closed."""
    async with host(connecting, seal=seal) as one, waiting(listening, seal=seal) as (_, listener):
        return [await exchange(one, listener) for _ in range(times)]


async def exchange(one: mrc.Context, listener: mrc.Listener) -> tuple[mrc.QP, mrc.QP]:
    """Connects one QP and sends immediates over it."""
    out, back = await asyncio.gather(
        one.connect("127.0.0.1", listener.port, timeout=PATIENCE),
        listener.accept(timeout=PATIENCE),
    )
    async with out, back:
        await out.write(imm=7)
        await back.write(imm=8)
        assert (await anext(aiter(back.immediates()))).imm == 7
        assert (await anext(aiter(out.immediates()))).imm == 8
    return out, back


async def refused(connecting: Security | None, listening: Security | None) -> str:
    """The error of the connecting side, one line."""
    with pytest.raises(ConnectError) as caught:
        await meet(connecting, listening)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- a connection of the exchange ----------------------------------------------------------------


@contextlib.asynccontextmanager
async def channels() -> AsyncIterator[tuple[Channel, Channel]]:
    """The connecting and the listening end of one TCP connection."""
    arrived: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()

    def on_peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set_result(Channel(reader, writer))

    server = await asyncio.start_server(on_peer, "127.0.0.1", 0, limit=FRAME_BYTES)
    port = server.sockets[0].getsockname()[1]
    one = Channel(*await asyncio.open_connection("127.0.0.1", port), called="host")
    try:
        yield one, await arrived
    finally:
        one.abort()
        (await arrived).abort()
        server.close()


# ---- an authority --------------------------------------------------------------------------------

A, B = "spiffe://cluster/ns/train/a", "spiffe://cluster/ns/train/b"
DAY = datetime.timedelta(days=1)


def _pem(key: ec.EllipticCurvePrivateKey, password: bytes = b"") -> bytes:
    encryption = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )


class TestAuthority:
    """An authority whose files lie below `folder`."""

    __test__ = False  # no test of pytest

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.ca = folder / f"{name}.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(self._name, self._key.public_key(), ca=True)
        self.ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _sign(
        self,
        name: x509.Name,
        public: ec.EllipticCurvePublicKey,
        names: Sequence[x509.GeneralName] = (),
        *,
        ca: bool = False,
        begins: int = -1,
        ends: int = 1,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder(self._name, name, public, x509.random_serial_number())
            .not_valid_before(now + begins * DAY)
            .not_valid_after(now + ends * DAY)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def issue(
        self,
        *uris: str,
        file: str = "",
        begins: int = -1,
        ends: int = 1,
        addresses: Sequence[str] = (),
        password: bytes = b"",
    ) -> Authority:
        """Writes a certificate with these URIs, valid between these days from now, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        certificate = self._sign(x509.Name([]), key.public_key(), names, begins=begins, ends=ends)
        file = file or (uris[0].rpartition("/")[2] if uris else "none")
        made = Authority(self.ca, self.folder / f"{file}.crt", self.folder / f"{file}.key")
        made.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        made.key.write_bytes(_pem(key, password))
        return made
