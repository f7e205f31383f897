# SPDX-License-Identifier: Apache-2.0
"""What the parts of an agent use of an attached program."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from mrc.agent.opening import Opened
from mrc.aio.local import Local
from mrc.enums import AgentKind
from mrc.fabric.hostconfig import IpAddress


class Attached(Protocol):
    """An attached program."""

    told: Opened
    """how it has opened its engine"""
    detached: bool
    """it is going, or goes on without this agent"""

    def send(self, kind: AgentKind, value: int = 0, cookie: int = 0, body: bytes = b"") -> None:
        """Sends it a frame."""

    def fail(self, qpn: int, reason: str) -> None:
        """Tells it that a QP cannot be connected."""

    def address_of(self, gid: IpAddress) -> tuple[Local, str, int]:
        """What to dial for the agent of the host with this GID."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task that ends when the program is detached."""
