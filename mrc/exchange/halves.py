# SPDX-License-Identifier: Apache-2.0
"""The reading that both sides of a QP must share: the halves of the EV in answers."""

from __future__ import annotations

from typing import Literal

from mrc.enums import Reading
from mrc.errors import ConnectError

Halves = Literal["C3-A", "C3-B"]
OURS: Halves = "C3-A"


def of(readings: Reading) -> Halves:
    """The alternative of C3 that a host with these readings follows."""
    return "C3-B" if Reading.C3_B in readings else OURS


def check(host: str, theirs: Halves, readings: Reading) -> None:
    """Raises ConnectError if the peer follows another alternative."""
    if theirs != of(readings):
        raise ConnectError(
            f"{host} follows reading {theirs} of the EV in answers, this host {of(readings)}:"
            " set ContextConfig.readings to the same on both"
        )
