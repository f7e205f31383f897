# SPDX-License-Identifier: Apache-2.0
"""Transfers for scripts without asyncio: `mrc.transfer`, with calls that block.

    result = mrc.blocking.transfer.send("photos", "host-b")

Nothing is declared here, as in `mrc.blocking`.
"""

from __future__ import annotations

from mrc.blocking.mirror import names
from mrc.lazy import directory

__getattr__ = names("mrc.transfer")
__dir__ = directory(__name__)
