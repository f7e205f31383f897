# SPDX-License-Identifier: Apache-2.0
"""The identity of a user on a host, and files of the identities that this user knows.

An identity is an Ed25519 key, and a certificate that it signs itself.

The fingerprint is the SHA-256 of the public key, so it stays the same when a certificate is made
anew. `cryptography` is loaded only here, when a key is needed.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
import os
import re
import ssl
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from mrc.errors import ConfigError, ConnectError
from mrc.linux.secret import Secret, read_trusted
from mrc.linux.system import write_whole
from mrc.typed import checked

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_PREFIX = "mrc:SHA256:"
_PRIVATE = re.compile(rb"-----BEGIN PRIVATE KEY-----(.*?)-----END PRIVATE KEY-----", re.DOTALL)
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_YEARS = 30  # our own check is the fingerprint; the certificate carries the key only


def default_path() -> Path:
    """$MRC_IDENTITY, or identity.pem in the user's configuration folder of mrc."""
    named = os.environ.get("MRC_IDENTITY")
    return Path(named) if named else folder() / "identity.pem"


def folder() -> Path:
    """The user's configuration folder of mrc. Raises ConfigError."""
    if named := os.environ.get("XDG_CONFIG_HOME"):
        return Path(named) / "mrc"
    try:
        return Path.home() / ".config" / "mrc"
    except RuntimeError:
        why = "this user has no home folder for keys: set $HOME or $XDG_CONFIG_HOME"
        raise ConfigError(why) from None


class Identity:
    """A key with its certificate, in the file `path`. Reads the key when it is first needed."""

    def __init__(self, path: Path, text: Secret) -> None:
        self.path = checked("path", path, Path)
        self._text = checked("text", text, Secret)
        self.certificate = _certificate(path, text)
        """in DER"""

    def __repr__(self) -> str:
        return f"Identity({str(self.path)!r})"

    def _key(self) -> Ed25519PrivateKey:
        """Made anew each time: it lies in ordinary memory, which is wiped at its end."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519

        try:
            found = _PRIVATE.search(self._text.bytes)
            if found is None:
                raise ValueError("no PEM block of this kind")
            # `cryptography` leaves copies of PEM in memory.
            text = self._text.bytes[slice(*found.span(1))]
            der = Secret.take(binascii.a2b_base64(text))
            key = serialization.load_der_private_key(der.bytes, None)
        except (ValueError, TypeError) as error:
            why = f"holds no private key without a password: {error}"
            raise ConfigError(f"{self.path}: {why}") from error
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise ConfigError(f"{self.path}: is no Ed25519 key: remove it, and mrc key makes one")
        return key

    @contextmanager
    def in_memory(self) -> Iterator[str]:
        """A file in memory, with the key and the certificate: OpenSSL takes only files."""
        with open(os.memfd_create("mrc-identity"), "wb", buffering=0) as file:
            file.write(self._text.bytes)
            yield f"/proc/self/fd/{file.fileno()}"

    @cached_property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self._key().public_key().public_bytes_raw()

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint_of(self.public)

    def sign(self, message: bytes) -> bytes:
        """The signature of a message, 64 bytes."""
        return self._key().sign(message)


def _certificate(path: Path, text: Secret) -> bytes:
    found = _CERTIFICATE.search(text.bytes)
    if found is None:
        raise ConfigError(f"{path}: holds no certificate: remove it, and mrc key makes one")
    try:
        return ssl.PEM_cert_to_DER_cert(found[0].decode("ascii"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: holds no certificate: {error}") from error


def fingerprint_of(public: bytes) -> str:
    """The fingerprint of an Ed25519 public key of 32 bytes."""
    digest = hashlib.sha256(public).digest()
    return _PREFIX + base64.b64encode(digest).decode().rstrip("=")


def load(path: Path) -> Identity:
    """Reads an identity; makes it first if there is no such file. Raises ConfigError."""
    try:
        return stored(path)
    except FileNotFoundError:
        _make(path)
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    return stored(path)


def stored(path: Path) -> Identity:
    """Reads an identity. Raises OSError, and ConfigError for another file."""
    return Identity(path, Secret.read(path))


def fresh() -> Identity:
    """A new identity that no file keeps."""
    return Identity(Path("a key that no file keeps"), Secret.copy(_new()))


def _make(path: Path) -> None:
    """Makes a key and its certificate. Another process may do so at the same time."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):  # the first one wins
            write_whole(path, _new(), mode=0o600, new=True)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be made: {(error.strerror or str(error)).lower()}: name another file"
            " with --identity or $MRC_IDENTITY"
        ) from error


def _new() -> bytes:
    """A key and its certificate, in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519
    from cryptography.x509.oid import NameOID

    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mrc")])
    begin = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)  # also where the clock is wrong
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin.replace(year=begin.year + 2 * _YEARS))
        .sign(key, None)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)


def public_of(certificate: bytes) -> bytes:
    """The Ed25519 public key of a DER certificate; raises ValueError for another kind of key."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ed25519

    try:
        with warnings.catch_warnings():  # about what the peer shows, for nobody here to read
            warnings.simplefilter("ignore")
            key = x509.load_der_x509_certificate(certificate).public_key()
    except (x509.InvalidVersion, UnsupportedAlgorithm) as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise ValueError("its key is not Ed25519")
    return key.public_bytes_raw()


def is_signed(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the owner of this public key has signed the message."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ed25519

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


# ---- Known identities ----------------------------------------------------------------------------


class ChangedError(ConnectError):
    """A known host shows another key than before."""


class KnownHosts:
    """The file of known hosts: a name and a fingerprint in each line."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or folder() / "known_hosts"

    def fingerprint(self, host: str) -> str | None:
        """The fingerprint of this host; None if it is not known."""
        for number, words in _lines(self.path):
            if words[0] == host:
                if len(words) < 2:
                    raise ConfigError(f"{self.path}:{number}: has no fingerprint")
                return words[1]
        return None

    def check(self, host: str, shown: str) -> bool:
        """False if the host is not known. Raises ChangedError if it shows another key."""
        known = self.fingerprint(host)
        if known is None:
            return False
        if known != shown:
            raise ChangedError(
                f"{host} shows another key than before: {shown} instead of {known}. Somebody may be"
                f" in between, or the host has a new key: if you know that it has, remove its line"
                f" from {self.path}"
            )
        return True

    def add(self, host: str, shown: str) -> None:
        """Remembers a host."""
        _append(self.path, f"{host} {shown}")


class AllowedPeers:
    """The user's file of peers that may connect: a fingerprint or SPIFFE name in each line."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or folder() / "allowed"

    def __contains__(self, peer: str) -> bool:
        return self.path.exists() and peer in self.named([str(self.path)])

    def add(self, fingerprint: str, comment: str) -> None:
        """Raises OSError."""
        _append(self.path, f"{fingerprint}  # {comment}")

    @staticmethod
    def fingerprint(text: str) -> str:
        """Returns `text` if it is a fingerprint; raises ValueError."""
        try:
            digest = base64.b64decode(text.removeprefix(_PREFIX) + "=", validate=True)
        except (binascii.Error, ValueError):
            digest = b""
        if not text.startswith(_PREFIX) or len(digest) != 32:
            raise ValueError(f"{text!r:.60} is no fingerprint, such as those of: mrc key")
        return text

    @staticmethod
    def named(entries: Iterable[str]) -> frozenset[str]:
        """The fingerprints and SPIFFE names in `entries`: given as such, or as files of them.

        A line of a file holds one, and may go on with a comment. Files are read anew in each call.
        """
        found: set[str] = set()
        for entry in entries:
            if entry.startswith((_PREFIX, "spiffe://")):
                found.add(entry)
                continue
            for number, words in _lines(Path(entry), required=True):
                if not words[0].startswith((_PREFIX, "spiffe://")):
                    raise ConfigError(f"{entry}:{number}: {words[0]!r:.40} is no fingerprint")
                found.add(words[0])
        return frozenset(found)


def _append(path: Path, line: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(path, "ab+", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
        if file.tell():  # an editor may have left the last line without its end
            file.seek(-1, os.SEEK_END)
            line = line if file.read() == b"\n" else f"\n{line}"
        file.write(f"{line}\n".encode())


def _lines(path: Path, *, required: bool = False) -> Iterator[tuple[int, list[str]]]:
    try:
        text = read_trusted(path).decode()
    except FileNotFoundError:
        if not required:
            return
        raise ConfigError(f"{path}: no such file, and no fingerprint either") from None
    except (OSError, UnicodeDecodeError) as error:
        why = str(error.strerror).lower() if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path}: cannot be read: {why}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.partition("#")[0].split():
            yield number, words
