# SPDX-License-Identifier: Apache-2.0
"""What a program needs of its agent."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from mrc.agent.numbers import Numbers
from mrc.agent.parameters import Wanted
from mrc.agent.requests import Control
from mrc.aio.local import Local
from mrc.control.profiles import CcProfile, EvProfile


class Host(Protocol):
    """What the programs of a host share: their agent."""

    port: int
    """TCP port of all agents"""
    numbers: Numbers[Any]
    dialling: asyncio.Semaphore
    """limits the exchanges that run at one time"""

    @property
    def local(self) -> Local:
        """The state of the agent's own Context."""

    def profiles(self, wanted: Wanted) -> tuple[EvProfile, CcProfile]:
        """The profiles of a QP; raises StateError."""

    control: Control
    """what the programs control together"""
