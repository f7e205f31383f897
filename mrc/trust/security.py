# SPDX-License-Identifier: Apache-2.0
"""What a Context requires of its peers, and how it proves itself."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from mrc.errors import ConfigError
from mrc.trust import files, words
from mrc.trust.identity import Identity, default_path, fresh, load, stored
from mrc.trust.memory import Secret
from mrc.trust.remedies import Commands

SECRET_BYTES = 32
SPIFFE = "spiffe://"
Ask = Callable[[str, str], Awaitable[bool]]
"""Asks the user about a host and its fingerprint; True: go on."""
AskCode = Callable[[str], Awaitable[str]]
"""Asks the user for the one-time code of a host."""


def load_secret(path: Path) -> Secret:
    """The secret in a file that only its owner may read; raises ConfigError."""
    made = f"make one with: mrc key --secret {path}"
    try:
        content = files.read_secret(path)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ConfigError(f"{path}: {why}; {made}") from None
    if len(content) != SECRET_BYTES:
        raise ConfigError(f"{path}: has not {SECRET_BYTES} bytes; {made}")
    return content


def secret_id(secret: Secret) -> str:
    """Names a secret without telling it: 16 hexadecimal digits."""
    digest = hashlib.sha256(b"mrc id")
    digest.update(secret.bytes)
    return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Authority:
    """Files of a certificate authority, and of a certificate and its key that it signed.

    mrc reads them anew when they change.
    """

    ca: Path
    """Certificates of the authority."""
    certificate: Path
    """This host's certificate."""
    key: Path
    """Its private key."""

    @property
    def files(self) -> tuple[Path, ...]:
        """All three."""
        return self.ca, self.certificate, self.key


@dataclass(frozen=True, slots=True)
class Security:
    """How a Context and its peers prove who they are. Without any, packets and names are plain.

    A connecting side that has neither `code`, `secret` nor `authority` knows its peer by its
    fingerprint: `peer`, or the file of known hosts, or the answer to `ask`.
    """

    identity: Path | None = None
    """File of the key; made when it is missing, unless a secret is the only proof. None:
    $MRC_IDENTITY or ~/.config/mrc."""
    allow: tuple[str, ...] = ()
    """Who may connect: fingerprints, SPIFFE names, or files of them."""
    plain_loopback: bool = False
    """Processes of this user on this host need no proof, to connect or to be connected to, except
    one whose name is among the known hosts."""
    allow_any: bool = False
    """Everybody who has a key may connect."""
    peer: str = ""
    """Fingerprint or SPIFFE name that the peer of a connect must prove."""
    known_hosts: Path | None = None
    """File of known hosts. None: known_hosts in ~/.config/mrc."""
    ask: Ask | None = field(default=None, repr=False)
    """Called for a host that is not known; None: the connect fails."""
    ask_code: AskCode | None = field(default=None, repr=False)
    """Called for a host that takes a one-time code instead of a key; None: the connect fails."""
    secret: bytes | Secret = field(default=b"", repr=False)
    """32 bytes that all hosts of a fleet have. `load_secret` keeps them out of core dumps."""
    code: str = field(default="", repr=False)
    """A one-time code of words: one peer, one guess."""
    lets_in_by_code: bool = True
    """False: `code` is the peer's, and this side lets nobody in by it."""
    authority: Authority | None = None
    """A certificate authority, as SPIFFE or cert-manager write its files."""
    commands: Commands = field(default_factory=Commands)
    """What users of both ends run: errors name these commands."""

    def __post_init__(self) -> None:
        if self.secret and len(self.secret) != SECRET_BYTES:
            raise ConfigError(f"secret: has {len(self.secret)} bytes, not {SECRET_BYTES}")
        if not isinstance(self.secret, Secret):
            object.__setattr__(self, "secret", Secret.copy(self.secret))
        if self.code:
            try:
                object.__setattr__(self, "code", words.normal(self.code))
            except ValueError as error:
                raise ConfigError(f"code: {error}") from None

        if self.peer and self.peer.startswith(SPIFFE) != (self.authority is not None):
            what = "a SPIFFE name" if self.authority is not None else "a fingerprint of mrc key"
            with_ = "with" if self.authority is not None else "without"
            raise ConfigError(f"peer: {self.peer!r:.60} is not {what}, {with_} an authority")

    @property
    def shared(self) -> Secret:
        """`secret`; empty without one."""
        assert isinstance(self.secret, Secret)
        return self.secret

    def load_identity(self) -> Identity:
        """The identity; makes it when it is missing.

        Where the secret alone lets peers in, nobody looks at the key: a missing one is not stored.
        """
        by_key = self.allow or self.allow_any or self.code
        if self.secret and not (by_key or self.identity):
            try:
                return stored(default_path())
            except (OSError, ConfigError):  # there may be no home folder, or that of another user
                return fresh()
        return load(self.identity or default_path())
