# SPDX-License-Identifier: Apache-2.0
"""The readings of the specification that both sides of a QP must share."""

from __future__ import annotations

from collections.abc import Collection

from mrc.enums import SHARED_READINGS, Reading
from mrc.errors import ConnectError


def shared(readings: Reading) -> tuple[str, ...]:
    """The names, such as C3-B, of those that this side follows in place of mrc's own."""
    return tuple(str(each.name).replace("_", "-") for each in readings & SHARED_READINGS)


def check(host: str, theirs: Collection[str], readings: Reading) -> None:
    """Raises ConnectError if the peer follows others."""
    ours = shared(readings)
    if set(theirs) != set(ours):
        raise ConnectError(
            f"{host} follows {_told(theirs)}, this host {_told(ours)}:"
            " set ContextConfig.readings to the same on both"
        )


def _told(names: Collection[str]) -> str:
    return f"reading {' and '.join(sorted(names))}" if names else "mrc's own readings"
