# SPDX-License-Identifier: Apache-2.0
"""Former names in the public API, which still work for one version."""

from __future__ import annotations

import warnings


def renamed(old: str, new: str) -> None:
    """Warns the caller of the caller, who used the former name."""
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=3)
