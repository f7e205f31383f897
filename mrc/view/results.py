# SPDX-License-Identifier: Apache-2.0
"""What `mrc testbed view` and `mrc top --web` print as JSON."""

from __future__ import annotations

from mrc.results.plain import Result


class Viewed(Result, frozen=True, kw_only=True):
    """Where the page is, while the command runs."""

    url: str
    """Address of the page. Whoever has it can break and heal the test bed."""
