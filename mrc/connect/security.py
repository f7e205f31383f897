# SPDX-License-Identifier: Apache-2.0
"""What a Context requires of its peers, how it proves itself, and what users can do when one host
refuses the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from mrc.connect.identity import AllowedPeers, Identity, default_path, fresh, load, stored
from mrc.connect.parse import printable
from mrc.connect.proofs import normal_code
from mrc.errors import ConfigError
from mrc.linux.secret import Secret
from mrc.typed import Checked, Text, checked

SPIFFE = "spiffe://"
Ask = Callable[[str, str], Awaitable[bool]]
"""Asks the user about a host and its fingerprint; True: go on."""
AskCode = Callable[[str], Awaitable[str]]
"""Asks the user for the one-time code of a host."""
WAYS = {
    "key": "a key (--allow)",
    "code": "a one-time code",
    "secret": "a secret (--secret)",
    "authority": "a certificate authority (--ca)",
}
"""The ways in which a peer can prove itself, in words."""


def load_secret(path: str | Path) -> Secret:
    """The secret in a file that only its owner may read; raises ConfigError."""
    path = Path(checked("path", path, str | Path))
    name = printable(str(path))
    made = f"make one with: mrc key --secret {name}"
    try:
        content = Secret.read(path)
    except (OSError, ValueError) as error:
        why = (getattr(error, "strerror", "") or str(error)).lower()
        raise ConfigError(f"{name}: {why}; {made}") from None
    if len(content) != Security.SECRET_BYTES:
        raise ConfigError(f"{name}: has not {Security.SECRET_BYTES} bytes; {made}")
    return content


def secret_id(secret: Secret) -> str:
    """Names a secret without telling it: 16 hexadecimal digits."""
    digest = hashlib.sha256(b"mrc id")
    digest.update(secret.bytes)
    return digest.hexdigest()[:16]


class Commands(Checked, Struct, frozen=True):
    """The commands of both ends, as users type them, and what to do by them.

    Both hosts print these texts, so a text names hosts and commands and never says "here" or
    "there".
    """

    listens: str = "mrc recv"
    """Starts the side that listens."""
    connects: str = "mrc send FILE HOST"
    """Starts the side that connects."""

    def wrong_code(self) -> str:
        """For a wrong guess."""
        return f"the code is wrong, and was good for one guess: {self._new_code()}"

    def unfinished_code(self) -> str:
        """For an exchange that ended after the one guess and before its end."""
        return f"the code was used, but the exchange did not finish: {self._new_code()}"

    def used_code(self) -> str:
        """For a code that has let a peer in."""
        return f"the one-time code has been used: {self._new_code()}"

    def _new_code(self) -> str:
        return f"{self.listens} --code prints a new one"

    def not_allowed(self, who: str) -> str:
        """For a peer with a key that is not in --allow."""
        return (
            f"{who} may not connect: {self.listens} --allow {who} lets it in, and --code on both"
            " hosts does"
        )

    def no_such_way(self, host: str, way: str, ways: Sequence[object]) -> str:
        """For a host that does not take the proof which this side has."""
        if way == "code":
            return f"{host} has no one-time code, or it has been used: {self._new_code()}"
        open_ = [each for each in WAYS if each in ways]
        if not open_:
            return (
                f"{host} lets no other host in: start {self.listens} --code on {host}, and type the"
                f" code into: {self.connects} --code"
            )
        taken = " or ".join(WAYS[each] for each in open_)
        return f"{host} takes {taken}, not {WAYS[way]}: {self._for(host, open_)}"

    def _for(self, host: str, ways: Collection[str]) -> str:
        if "code" in ways:
            return f"type the code that {host} shows into: {self.connects} --code"
        if "secret" in ways:  # also for further QPs, after a one-time code has been used
            return (
                f"run: {self.connects} --secret FILE; or if {host} has used its one-time code,"
                f" start {self.listens} --code again"
            )
        if "authority" in ways:
            return f"run: {self.connects} --ca FILE --cert FILE --key FILE"
        return f"start {self.listens} --code on {host}, and run: {self.connects} --code"


@dataclass(frozen=True, slots=True)
class Authority(Checked):
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
class Security(Checked):
    """How a Context and its peers prove who they are. Without any, packets and names are plain.

    A connecting side that has neither `code`, `secret` nor `authority` knows its peer by its
    fingerprint: `peer`, or the file of known hosts, or the answer to `ask`.
    """

    SECRET_BYTES: ClassVar = 32
    """The length of a fleet's secret."""

    identity: Path | None = None
    """File of the key; made when it is missing, unless a secret is the only proof. None:
    $MRC_IDENTITY or ~/.config/mrc."""
    allow: tuple[Text, ...] = ()
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
        Checked.__post_init__(self)
        if self.secret and len(self.secret) != self.SECRET_BYTES:
            raise ConfigError(f"secret: has {len(self.secret)} bytes, not {self.SECRET_BYTES}")
        if not isinstance(self.secret, Secret):
            object.__setattr__(self, "secret", Secret.copy(self.secret))
        checks = {"code": normal_code, "peer": AllowedPeers.fingerprint}
        if self.authority is not None:
            del checks["peer"]
            if self.peer and not self.peer.startswith(SPIFFE):
                wrong = f"{self.peer!r:.60} is not a SPIFFE name, with an authority"
                raise ConfigError(f"peer: {wrong}")
        for name, check in checks.items():
            try:
                object.__setattr__(self, name, (text := getattr(self, name)) and check(text))
            except ValueError as error:
                raise ConfigError(f"{name}: {error}") from None

    @property
    def shared(self) -> Secret:
        """`secret`; empty without one."""
        assert isinstance(self.secret, Secret)
        return self.secret

    @property
    def secret_id(self) -> str:
        """Names the secret as `secret_id` does."""
        return secret_id(self.shared)

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
