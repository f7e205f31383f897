# SPDX-License-Identifier: Apache-2.0
"""What the establishment of a QP starts from: the state of its Context, and the caller's terms."""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field, structs

from mrc.aio.qp import QP
from mrc.config import MAX_MPR, ContextConfig, Queues
from mrc.connect.admission import Claims
from mrc.connect.profiles import (
    DEFAULT,
    CcProfile,
    CcSettings,
    ContextProfiles,
    EvProfile,
    EvSelection,
)
from mrc.connect.tls import Guard
from mrc.engine.dispatch import Dispatcher
from mrc.engine.ports import LocalPorts, finder
from mrc.engine.queue_pair import QueuePair
from mrc.enums import Integrity
from mrc.errors import MrcError
from mrc.fabric import hostconfig
from mrc.fabric.hostconfig import HostConfig, IpAddress, PathSource

if TYPE_CHECKING:
    from mrc.messages.messages import MessagePeer

logger = logging.getLogger("mrc.establish")


class Local(Struct, frozen=True):
    """State that all QPs of a Context share."""

    name: str
    config: ContextConfig
    host: HostConfig | None
    links: LocalPorts
    dispatcher: Dispatcher
    rng: random.Random
    claims: Claims
    guard: Guard | None
    ev_profiles: ContextProfiles[EvProfile]
    cc_profiles: ContextProfiles[CcProfile]
    warned: deque[str] = field(default_factory=lambda: deque(maxlen=64))  # lines, logged once each
    source: IpAddress | None = None  # the address to connect from; None: any

    def warn(self, line: str) -> None:
        """Logs the line, if there is one. A transfer has several QPs with the same findings."""
        if line:
            logger.log(logging.DEBUG if line in self.warned else logging.WARNING, "%s", line)
            self.warned.append(line)

    def integrity_with(self, theirs: str) -> Integrity:
        """UDP's checksum alone, the weaker protection, applies only if both sides choose it."""
        both = self.config.integrity is Integrity.UDP and theirs == "udp"
        return Integrity.UDP if both else Integrity.ICRC

    @property
    def srv6(self) -> HostConfig | None:
        """The host configuration if it defines SRv6 paths, else None."""
        return self.host if self.host and self.host.source is PathSource.SRV6 else None


def opened(config: ContextConfig) -> Local:
    """Opens the datapath of a Context."""
    host = config.host or hostconfig.load(os.environ)
    links = LocalPorts(finder(config, host))
    engine = links.open(config)
    for line in links.small:
        logger.warning("%s", line)
    selection = EvSelection(active_per_plane=config.spraying.evs_active_per_plane)
    settings = CcSettings(config.cc, config.cc_parameters, config.plane_shares)
    return Local(
        name=config.name or (host.host if host else socket.gethostname()),
        config=config,
        host=host,
        links=links,
        dispatcher=Dispatcher(engine),
        rng=random.Random(secrets.randbits(64)),
        claims=Claims(),
        guard=None if config.security is None else Guard(config.security),
        ev_profiles=ContextProfiles(EvProfile(DEFAULT, selection)),
        cc_profiles=ContextProfiles(CcProfile(DEFAULT, settings)),
    )


def further(first: Local, number: int) -> Local:
    """Another datapath of the same Context, its n-th; its UDP port is n above a configured one."""
    config = first.config
    if config.udp_port:
        config = replace(config, udp_port=config.udp_port + number)
    links = LocalPorts(finder(config, first.host))
    return structs.replace(first, links=links, dispatcher=Dispatcher(links.open(config)))


def queue_pair(sizes: Queues, **more: Any) -> QueuePair:
    """A QP of these sizes. `more`: its number, if that is not a random one."""
    return QueuePair(sizes.sq_depth, sizes.mpr or MAX_MPR, sizes.max_wimm, **more)


Admit = Callable[[dict[str, Any]], bool | Awaitable[bool | None] | None]


class Terms(Struct, frozen=True):
    """The caller's parameters for a QP."""

    private: dict[str, Any]
    ev_profile: EvProfile
    cc_profile: CcProfile
    admit: Admit | None = None  # refuses by the peer's private data
    check: Callable[[str, Collection[IpAddress], str], None] = lambda *_: None
    """refuses by the peer's name, its addresses, and the one that it calls from"""
    failed: Callable[[dict[str, Any], MrcError], None] | None = None  # a peer that was admitted
    messages: bool = False  # the QP carries messages
    peer: Callable[[Dispatcher], MessagePeer] | None = None  # the same, with a peer that exists
    queue: Callable[[], QueuePair] | None = None  # makes one for each attempt, with its number
    end: Callable[..., QP] = QP  # makes this side's end of the QP
