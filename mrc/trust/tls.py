# SPDX-License-Identifier: Apache-2.0
"""TLS 1.3 contexts. Who is at the other end is proved inside, or by a certificate authority."""

from __future__ import annotations

import datetime
import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mrc.errors import ConfigError, ConnectError, ConnectRefusedError
from mrc.trust import files
from mrc.trust.identity import Identity
from mrc.trust.security import SPIFFE, Authority

logger = logging.getLogger("mrc.trust")

_CLEANSE_PLAINTEXT = 1 << 1  # of OpenSSL 3, unnamed in Python: wipes what was read from its buffer
_RENEW = "renew it, or check the clocks of both hosts"
_NOT_YET = "is not valid yet: check the clocks of both hosts"
_WRONG = {  # codes of OpenSSL's verification
    9: f"its certificate {_NOT_YET}",
    10: f"its certificate has expired: {_RENEW}",
    18: "its certificate is of no authority: it proves its key (--peer, known hosts), a secret or"
    " a code",
    26: "its certificate is not for this use: it must be for servers and for clients",
    62: "its certificate is for another name: use that name, or --peer with its SPIFFE name",
    64: "its certificate is for another address: use its name, or --peer with its SPIFFE name",
}
_ALERTS = {  # what the other side says of this side's certificate
    "CERTIFICATE_EXPIRED": f"says that this host's certificate has expired: {_RENEW}",
    "UNKNOWN_CA": "does not know this host's authority: both hosts need the same --ca",
    "CERTIFICATE_REQUIRED": "requires a certificate of its authority: --ca, --cert and --key",
    "BAD_CERTIFICATE": "does not accept this host's certificate: check it, and both clocks",
}


class Loaded:
    """A TLS context that is made anew after one of its files has changed.

    Who renews certificates writes one file after the other. While they do not fit each other, the
    context of before stays in use.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext], authority: Authority | None) -> None:
        self._make = make
        self._files = authority.files if authority is not None else ()
        self._context: ssl.SSLContext | None = None
        self._seen: list[object] = []

    def context(self) -> ssl.SSLContext:
        """The context; raises ConfigError if there is none yet and a file is wrong."""
        now = [_stamp(path) for path in self._files]  # before they are read: a change counts later
        if self._context is None:
            self._context, self._seen = self._make(), now
        elif now != self._seen:
            self._seen = now
            try:
                self._context = self._make()
            except ConfigError as error:
                logger.warning("the certificates of before stay in use: %s", error)
            else:
                logger.info("read %s anew", ", ".join(map(str, self._files)))
        return self._context


def _stamp(path: Path) -> object:
    """Differs when the file has been written or replaced, also behind a link."""
    try:
        status = os.stat(path)
    except OSError as error:
        return error.errno
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def server(identity: Identity | None, authority: Authority | None) -> Loaded:
    """For the listening side: one of both."""

    def make() -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0  # a session is never resumed
        if authority is not None:
            _load(context, authority)
        elif identity is not None:
            with identity.in_memory() as file:
                context.load_cert_chain(file)
        return context

    return Loaded(make, authority)


def client(authority: Authority | None, *, check_hostname: bool = False) -> Loaded:
    """For the connecting side. Without an authority it takes any certificate: the caller compares
    the fingerprint."""

    def make() -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if authority is not None:
            _load(context, authority)
            context.check_hostname = check_hostname
        return context

    return Loaded(make, authority)


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_TICKET | _CLEANSE_PLAINTEXT
    return context


def _load(context: ssl.SSLContext, authority: Authority) -> None:
    for path in authority.files:
        try:
            files.read(path)
        except OSError as error:
            raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    try:
        context.load_verify_locations(authority.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{authority.ca}: holds no certificate of an authority") from error
    try:
        # Without a function for the password, OpenSSL would ask for it on the terminal.
        context.load_cert_chain(authority.certificate, authority.key, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            wrong = f"{authority.key}: is not the key of {authority.certificate}"
        else:
            both = f"{authority.certificate}, {authority.key}"
            wrong = f"{both}: are not a certificate and its key without a password, in PEM"
        raise ConfigError(wrong) from error
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the authority may be an intermediate


def spiffe_name(certificate: Any) -> str:
    """The SPIFFE name of a certificate that ssl has verified; empty if it has none."""
    names = [
        value for kind, value in (certificate or {}).get("subjectAltName", ()) if kind == "URI"
    ]
    if len(names) > 1:  # SPIFFE forbids it, since nobody could say which one counts
        raise ConnectError("the peer's certificate has more than one URI: SPIFFE allows one")
    return names[0] if names and names[0].startswith(SPIFFE) else ""


def explain(error: ssl.SSLError, host: str) -> ConnectError:
    """An error of TLS in one line, with its remedy."""
    reason = str(error.reason or error)
    if isinstance(error, ssl.SSLCertVerificationError):
        other = f"its certificate is not of this host's authority: {error.verify_message}"
        return ConnectError(f"{host}: {_WRONG.get(error.verify_code, other)}")
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return ConnectError(f"{host} shows no certificate: this host takes those of its authority")
    for alert, says in _ALERTS.items():
        if reason.endswith(f"ALERT_{alert}"):
            return ConnectRefusedError(f"the peer {says}", f"it {says}")
    return ConnectError(f"{host}: TLS failed: {reason}")


def check_dates(path: Path) -> None:
    """Raises ConnectError if the certificate in this file is not valid now.

    For a start of TLS that the other side broke off without a reason.
    """
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return  # it has been replaced since
    now = datetime.datetime.now(datetime.UTC)
    if now > certificate.not_valid_after_utc:
        raise ConnectError(f"{path}: this certificate has expired: {_RENEW}")
    if now < certificate.not_valid_before_utc:
        raise ConnectError(f"{path}: this certificate {_NOT_YET}")
