# SPDX-License-Identifier: Apache-2.0
"""All views of one Context that its configuration enables."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

from mrc.aio.context import Context
from mrc.aio.qp import QP
from mrc.events import QpInfo
from mrc.observe.http import MetricsServer
from mrc.observe.ledger import Ledger
from mrc.observe.local import LocalView
from mrc.observe.remote import RemoteView
from mrc.observe.snapshot import snapshot
from mrc.results.snapshot import Snapshot

logger = logging.getLogger("mrc.observe")


class Observatory:
    """The views of one Context; the Context opens and closes them."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._local = LocalView(self._show)
        self._ledger = Ledger()
        self._metrics: MetricsServer | None = None

    async def open(self) -> None:
        """Raises InUseError or ResolveError if the address of the metrics is not available."""
        config = self._ctx.config
        if config.metrics is not None:
            self._metrics = self._metrics_server()
            await self._metrics.open(*config.metrics)
        if config.local_view:
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

    @property
    def metrics_port(self) -> int:
        """The TCP port of the metrics; 0 without metrics."""
        return 0 if self._metrics is None else self._metrics.port

    def adopt(self, qp: QP) -> Callable[[QpInfo | None], None] | None:
        """Begins to count a connected QP. Returns the function to call at its end; None without
        metrics.
        """
        if self._ctx.config.metrics is None:
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
