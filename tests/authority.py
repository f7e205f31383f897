# SPDX-License-Identifier: Apache-2.0
"""A certificate authority for tests, with the files that SPIFFE or cert-manager would write."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from mrc.trust.security import Authority

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
