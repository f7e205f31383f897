# SPDX-License-Identifier: Apache-2.0
"""The public Context, which offers the views that its configuration enables."""

from __future__ import annotations

from typing import Any

from mrc.aio import context
from mrc.observe.observatory import Observatory
from mrc.observe.snapshot import snapshot
from mrc.results.plain import plain


class Context(context.Context):
    """One datapath with its sockets, listeners, QPs and memory regions. An async context manager.

    Leaving it closes its listeners and QPs and releases its memory regions, in that order.
    """

    def _make_observer(self) -> Observatory:
        self._observatory = Observatory(self)
        return self._observatory

    @property
    def metrics_port(self) -> int:
        """The TCP port at which metrics are served; 0 without `ContextConfig.metrics`."""
        return self._observatory.metrics_port

    async def snapshot(self) -> dict[str, Any]:
        """The state of the Context as data for `json`, as in `mrc top`.

        `mrc schema top` describes the keys: a snapshot is an endpoint without the rates.
        """
        found: dict[str, Any] = plain(await snapshot(self))
        return found
