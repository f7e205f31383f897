# SPDX-License-Identifier: Apache-2.0
"""Measurements for scripts without asyncio: `mrc.perf`, with calls that block.

    with mrc.blocking.perf.serve(port=0) as server:
        result = mrc.blocking.perf.measure(f"127.0.0.1:{server.port}", seconds=1)

Nothing is declared here, as in `mrc.blocking`.
"""

from __future__ import annotations

from mrc.blocking.mirror import names
from mrc.lazy import directory

__getattr__ = names("mrc.perf")
__dir__ = directory(__name__)
