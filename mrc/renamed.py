# SPDX-License-Identifier: Apache-2.0
"""Former names in the public API, which still work for one version."""

from __future__ import annotations

import warnings

ENDS = "0.5"  # the version of mrc that no longer has them


def renamed(old: str, new: str) -> None:
    """Warns the caller of the caller, who used the former name."""
    text = f"{old} is now {new}; mrc {ENDS} no longer has the former name"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
