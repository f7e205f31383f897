# SPDX-License-Identifier: Apache-2.0
"""How this process finds its interfaces, and the name by which its peers reach it."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from mrc.config import ContextConfig
from mrc.errors import ConfigError
from mrc.fabric import hostconfig
from mrc.trust.security import Security, load_secret

INTERFACES = "GLOO_SOCKET_IFNAME"  # Gloo's own variable: names with commas between them
SECRET = "MRC_SECRET"  # file of the secret that all ranks have; unset: nothing is encrypted


def config_of(environ: Mapping[str, str]) -> ContextConfig:
    """The interfaces of the host configuration ($MRC_CONFIG), those that $GLOO_SOCKET_IFNAME
    names, or all. If $MASTER_ADDR is a loopback address, all ranks are processes of this host. With
    $MRC_SECRET the exchange is encrypted and packets are sealed. Raises ConfigError.
    """
    interfaces = tuple(name for name in environ.get(INTERFACES, "").split(",") if name)
    if not interfaces and hostconfig.ENVIRONMENT not in environ and _is_loopback(environ):
        interfaces = ("127.0.0.1",)
    rank = environ.get("RANK", "")
    program = f"torch rank {rank}" if rank.isdecimal() else "torch"
    secret = environ.get(SECRET, "")
    return ContextConfig(
        interfaces=interfaces,
        program=program,
        local_view=True,
        security=Security(secret=load_secret(Path(secret))) if secret else None,
    )


def check_interfaces(config: ContextConfig, missing: Sequence[str]) -> None:
    """Raises ConfigError if no wanted interface can be used: the ranks would wait for each other in
    vain.
    """
    if config.interfaces and len(missing) >= len(config.interfaces):
        raise ConfigError(f"{INTERFACES}: {'; '.join(missing)}")


def name_of(environ: Mapping[str, str]) -> str:
    """The configured name of this host, or the address that $MASTER_ADDR is reached from."""
    host = hostconfig.load(environ)
    if host is not None:
        return host.host
    return _source(environ.get("MASTER_ADDR", "")) or socket.gethostname()


def _is_loopback(environ: Mapping[str, str]) -> bool:
    source = _source(environ.get("MASTER_ADDR", ""))
    return bool(source) and ipaddress.ip_address(source.partition("%")[0]).is_loopback


def _source(host: str) -> str:
    """The address of this host that packets to `host` come from; empty: there is none."""
    if not host:
        return ""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return ""
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(address)  # sends no packet
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return ""
