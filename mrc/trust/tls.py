# SPDX-License-Identifier: Apache-2.0
"""TLS 1.3 contexts. Who is at the other end is proved inside, or by a certificate authority."""

from __future__ import annotations

import ssl
from typing import Any

from mrc.errors import ConfigError, ConnectError
from mrc.trust.identity import Identity
from mrc.trust.security import Authority

_SPIFFE = "spiffe://"


def server(identity: Identity | None, authority: Authority | None) -> ssl.SSLContext:
    """For the listening side. Files are read anew in each call, so renewed certificates count."""
    context = _context(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # a session is never resumed
    _load(context, identity, authority)
    return context


def client(authority: Authority | None, *, check_hostname: bool = False) -> ssl.SSLContext:
    """For the connecting side. Without an authority it takes any certificate: the caller compares
    the fingerprint."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _load(context, None, authority)
    context.check_hostname = check_hostname
    return context


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_TICKET
    return context


def _load(context: ssl.SSLContext, identity: Identity | None, authority: Authority | None) -> None:
    try:
        if authority is not None:
            context.load_verify_locations(authority.ca)
            context.load_cert_chain(authority.certificate, authority.key)
            context.verify_mode = ssl.CERT_REQUIRED
        elif identity is not None:
            context.load_cert_chain(identity.path)
    except (OSError, ssl.SSLError) as error:
        where = identity.path if authority is None and identity is not None else authority
        raise ConfigError(f"{where}: cannot be used for TLS: {error}") from error


def spiffe_names(certificate: Any) -> frozenset[str]:
    """The SPIFFE names of a certificate that ssl has verified."""
    names = (certificate or {}).get("subjectAltName", ())
    return frozenset(value for kind, value in names if kind == "URI" and value.startswith(_SPIFFE))


def explain(error: ssl.SSLError, host: str) -> ConnectError:
    """The error of TLS in one line, with its remedy."""
    code = getattr(error, "verify_code", None)
    if code == 10:
        return ConnectError(f"{host}: its certificate has expired: renew it, or check the clocks")
    if code == 9:
        return ConnectError(
            f"{host}: its certificate is not valid yet: check the clocks of both hosts"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message
        return ConnectError(f"{host}: its certificate is not of this authority: {why}")
    return ConnectError(f"{host}: TLS failed: {error.reason or error}")
