# SPDX-License-Identifier: Apache-2.0
"""Test beds for scripts without asyncio: `mrc.testbed`, with calls that block.

    with mrc.blocking.testbed.up(planes=2) as bed, bed.fail("plane:2"):
        print(bed.host("h0").run(["ping", "-c", "1", "h1.p1"]).stdout)

Nothing is declared here, as in `mrc.blocking`.
"""

from __future__ import annotations

from typing import Any

from mrc.blocking.mirror import Mirror

_mirror = Mirror("mrc.testbed")


def __getattr__(name: str) -> Any:
    value = globals()[name] = _mirror.member(name)
    return value
