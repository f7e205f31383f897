# SPDX-License-Identifier: Apache-2.0
"""How a program opens its engine, as its agent says."""

from __future__ import annotations

from collections.abc import Sequence

from mrc.binding.device import configuration
from mrc.config import ContextConfig
from mrc.fabric.ports import LocalPort

MOST_QPS = 4096
_MOST_MRS = 16384


def engine_config(config: ContextConfig, ports: Sequence[LocalPort | None]) -> dict[str, object]:
    """The fields of `struct mrc_ctx_config`."""
    fields = configuration(
        ports,
        polled=True,
        unguarded=True,
        max_qps=MOST_QPS,
        spin_us=config.sockets.spin_us,
        rcvbuf_bytes=config.sockets.rcvbuf_bytes,
        sndbuf_bytes=config.sockets.sndbuf_bytes,
    )
    fields["engine"]["max_mrs"] = _MOST_MRS
    return fields
