# SPDX-License-Identifier: Apache-2.0
"""What views read of a Context and its QPs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mrc.config import ContextConfig
from mrc.events import EvInfo, QpInfo
from mrc.fabric.paths import LocalPort


class ObservedQp(Protocol):
    """A QP of the Context."""

    @property
    def qpn(self) -> int: ...
    @property
    def peer_name(self) -> str: ...
    async def query(self) -> QpInfo: ...
    async def evs(self) -> Sequence[EvInfo]: ...


class Observed(Protocol):
    """A Context; its members raise StateError when it is closed."""

    config: ContextConfig

    @property
    def name(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def udp_port(self) -> int: ...
    @property
    def ports(self) -> Sequence[LocalPort]: ...
    @property
    def qps(self) -> Sequence[ObservedQp]: ...
    async def counters(self) -> dict[str, int]: ...
    async def drops(self) -> dict[str, int]: ...
