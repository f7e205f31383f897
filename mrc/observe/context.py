# SPDX-License-Identifier: Apache-2.0
"""The Context that users get: one that can be looked into, as its configuration says."""

from __future__ import annotations

from mrc.aio import context
from mrc.config import ContextConfig
from mrc.observe.observatory import Observatory
from mrc.observe.snapshot import Snapshot, snapshot


class Context(context.Context):
    """One datapath with its sockets, and everything made with it. An async context manager.

    Leaving it closes its listeners and QPs and releases its memory regions, in that order.
    """

    def __init__(self, config: ContextConfig | None = None) -> None:
        super().__init__(config)
        self._observatory = Observatory(self)
        self.subscribe(self._observatory)

    @property
    def metrics_port(self) -> int:
        """The TCP port at which metrics are served; 0 without `ContextConfig.metrics`."""
        return self._observatory.metrics_port

    async def snapshot(self) -> Snapshot:
        """All of its state as JSON, as `mrc top` shows it."""
        return await snapshot(self)
