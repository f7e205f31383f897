# SPDX-License-Identifier: Apache-2.0
"""What a verbs program sees of this host: one device, with GIDs and a port for each plane."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from mrc.agent.steering import MAX_GIDS
from mrc.errors import ConfigError, ConnectError
from mrc.fabric.hostconfig import HostConfig, IpAddress, parse_address
from mrc.fabric.paths import LocalPort

DEVICE = "mrc0"
FILE = Path("/dev/infiniband", DEVICE)
_NULL = os.makedev(1, 3)
_MODE = 0o666


def gids_of(ports: Sequence[LocalPort]) -> list[IpAddress]:
    """The addresses that stand for this host: one of each IP version, IPv4 first.

    They are those of the first plane that has them. A host without a network has its loopback.
    """
    outside = [port for port in ports if not port.loopback]
    addresses = [port.address.ip for port in outside or ports]
    found = [next((each for each in addresses if each.version == v), None) for v in (4, 6)]
    return [each for each in found if each is not None][:MAX_GIDS]


def peer_of(gid: IpAddress, own: Iterable[IpAddress], host: HostConfig | None) -> str:
    """What to dial for a GID: a configured peer, this host itself, or the address."""
    if gid in own:
        return str(gid) if host is None else host.host
    if host is not None and host.has_srv6:
        for peer in host.peers.values():
            if gid in peer.sources:
                return peer.name
    return str(gid)


def source_of(gid: IpAddress, own: Iterable[IpAddress], peer: str) -> IpAddress | None:
    """The GID from which to dial `peer`: the program there has named this host by it; None: any."""
    if gid in own or peer != str(gid):
        return None
    usable = (each for each in own if each.version == gid.version and not each.is_loopback)
    return next(usable, None)


def gid_for(called: IpAddress, ports: Sequence[LocalPort]) -> IpAddress:
    """The GID by which a peer knows this host, which has called it at an address: that address if a
    port has it. Others, such as those of a network for management, lead to the agent only.
    """
    own = gids_of(ports)
    if called.is_loopback or not own or called in (port.address.ip for port in ports):
        return called
    return next((each for each in own if each.version == called.version), own[0])


def check_host(
    gid: IpAddress,
    own: Iterable[IpAddress],
    host: HostConfig | None,
    name: str,
    addresses: Collection[IpAddress],
    remote: str,
) -> None:
    """Raises ConnectError unless a peer is the host that a GID names: anybody can read the numbers
    of both QPs in the headers.

    The peer has connected from `remote`, and calls itself `name`. It has these addresses: first
    those in its hello, later those that have answered probes.
    """
    named = peer_of(gid, own, host)
    if gid in own:
        same = all(each.is_loopback for each in addresses)
    elif named != str(gid):
        same = name == named  # and its addresses must be those configured for it
    else:
        same = gid in addresses or gid == parse_address(remote)
    if not same:
        raise ConnectError(f"{remote} is not {gid}, the peer that the program has named")


@contextmanager
def device_file(path: Path = FILE) -> Iterator[None]:
    """Makes the file in /dev by which some programs, such as UCX, judge whether the device is
    there, and removes it in the end; raises ConfigError.

    Only its kind matters: a character device. libmrc needs none, so this one is as /dev/null.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        found = path.stat() if path.exists() else None  # a killed agent may have left it
        if found is None or not stat.S_ISCHR(found.st_mode) or found.st_rdev != _NULL:
            os.mknod(path, stat.S_IFCHR | _MODE, _NULL)
            path.chmod(_MODE)
    except PermissionError as error:
        raise ConfigError(f"{path}: only root can make it: start mrc agent as root") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
            path.parent.rmdir()
