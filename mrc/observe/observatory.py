# SPDX-License-Identifier: Apache-2.0
"""What a Context tells its observer; the one that shows what the configuration enables."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Protocol

from mrc.events import QpInfo
from mrc.observe.local import LocalView
from mrc.observe.results import Snapshot
from mrc.observe.server import MetricsServer, RemoteView
from mrc.observe.snapshot import Ledger, ObservedContext, ObservedQp, snapshot

logger = logging.getLogger("mrc.observe")


class Observer(Protocol):
    """Opens and closes together with its Context."""

    metrics_port: int
    """The TCP port at which it serves metrics; 0: none."""

    async def open(self, ctx: ObservedContext) -> None:
        """Called when the Context is open. An exception closes the Context again."""

    async def close(self) -> None:
        """Called before the Context ends; safe to call twice."""

    def forget(self) -> None:
        """Called when the event loop has ended before the Context."""

    def adopt(self, qp: ObservedQp) -> Callable[[QpInfo | None], None] | None:
        """Called for each connected QP. Returns a function to call with the QP's last state."""

    def viewers(self) -> RemoteView:
        """What answers the viewers of a new listener."""


class Observatory:
    """The views of one Context, which opens and closes them."""

    def __init__(self) -> None:
        self._ctx: ObservedContext
        self._local = LocalView(self._show)
        self._ledger = Ledger()
        self._metrics: MetricsServer | None = None
        self.metrics_port = 0
        """The TCP port of the metrics; 0 without metrics."""

    async def open(self, ctx: ObservedContext) -> None:
        """Raises InUseError or ResolveError if the address of the metrics is not available."""
        self._ctx = ctx
        if ctx.config.metrics is not None:
            self._metrics = self._metrics_server()
            await self._metrics.open(*ctx.config.metrics)
            self.metrics_port = self._metrics.port
        if ctx.config.local_view:
            try:
                await self._local.open()
            except OSError as error:
                logger.info("mrc top --local cannot show this endpoint: %s", error)

    async def close(self) -> None:
        """Closes all views; safe to call twice."""
        if self._metrics is not None:
            await self._metrics.close()
        await self._local.close()

    def forget(self) -> None:
        """Does the part of `close` that does not require an event loop."""
        self._local.forget()

    def adopt(self, qp: ObservedQp) -> Callable[[QpInfo | None], None] | None:
        """Begins to count a connected QP. Returns the function to call at its end; None without
        metrics.
        """
        if self._metrics is None:
            return None
        self._ledger.add(qp)
        return functools.partial(self._ledger.retire, qp)

    def viewers(self) -> RemoteView:
        """The remote view for a new listener; it rejects viewers without `remote_view`."""
        return RemoteView(self._show if self._ctx.config.remote_view else None)

    async def _show(self) -> Snapshot:
        return await snapshot(self._ctx)

    def _metrics_server(self) -> MetricsServer:
        from mrc.observe import metrics  # slow import: prometheus_client takes half as long as mrc

        async def page(accept: str) -> tuple[bytes, str]:
            return metrics.exposition(await metrics.read(self._ctx, self._ledger), accept)

        return MetricsServer(page)
