# SPDX-License-Identifier: Apache-2.0
"""Compares the bytes of each plane with the other planes, over a whole test or transfer. Pure.

While a test runs, the engine reports a slow plane in PlaneInfo.slow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

LEAST_BYTES = 64 << 20  # `sentence` requires this many from all planes together
LEAST_OTHER_BYTES = 8 << 20  # and this many from each plane that is not slow
SLOW_PERCENT = 50


def carried_percent(moved: Mapping[int, int]) -> dict[int, int | None]:
    """Each plane's bytes in percent of the mean of the other planes; None if that mean is 0.

    A single plane has 100.
    """
    total, others = sum(moved.values()), len(moved) - 1
    if others == 0:
        return dict.fromkeys(moved, 100)
    return {
        plane: round(100 * others * own / (total - own)) if total > own else None
        for plane, own in moved.items()
    }


def shares_text(moved: Mapping[int, int], marks: Mapping[int, str] = {}) -> str:
    """ "planes 1: 25% 2: 75%", each with its mark; empty if no plane moved bytes."""
    total = sum(moved.values())
    if total <= 0:
        return ""
    return "planes " + " ".join(
        f"{plane}: {own / total:.0%}{marks.get(plane, '')}" for plane, own in moved.items()
    )


def sentence(moved: Mapping[int, int], lost: Collection[int] = ()) -> str:
    """ "plane 2 carried 9% of the others"; empty if no plane is slow or too few bytes moved.

    Leaves out planes without any byte and the planes in `lost`: they were down, not slow.
    """
    moved = {plane: own for plane, own in moved.items() if own and plane not in lost}
    slow = {
        plane: percent
        for plane, percent in carried_percent(moved).items()
        if percent is not None and percent < SLOW_PERCENT
    }
    rest = [own for plane, own in moved.items() if plane not in slow]
    if not slow or sum(moved.values()) < LEAST_BYTES or min(rest) < LEAST_OTHER_BYTES:
        return ""
    (first, percent), *more = slow.items()
    parts = [f"plane {first} carried {percent}% of the others"]
    return ", ".join([*parts, *(f"plane {plane} {percent}%" for plane, percent in more)])
