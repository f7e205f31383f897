# SPDX-License-Identifier: Apache-2.0
"""Test beds for scripts without asyncio: `mrc.testbed`, with calls that block.

    with mrc.blocking.testbed.up(planes=2) as bed, bed.fail("plane:2"):
        print(bed.host("h0").run(["ping", "-c", "1", "h1.p1"]).stdout)

Nothing is declared here, as in `mrc.blocking`.
"""

from __future__ import annotations

from mrc.blocking.mirror import names
from mrc.lazy import directory

__getattr__ = names("mrc.testbed")
__dir__ = directory(__name__)
