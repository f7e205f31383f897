# SPDX-License-Identifier: Apache-2.0
"""What `mrc key` prints as JSON."""

from __future__ import annotations

from mrc.results.plain import Result


class Key(Result, frozen=True, kw_only=True):
    """A key of this user, or a secret that was made."""

    path: str
    """The file."""
    fingerprint: str | None
    """Its fingerprint; null for a secret."""
