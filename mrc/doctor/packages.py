# SPDX-License-Identifier: Apache-2.0
"""Whether the Python packages that mrc requires are installed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from mrc.results.doctor import Finding, State


def examine() -> Iterator[Finding]:
    """A finding for each, in the order of the requirements."""
    try:
        wanted = requires("mrc-transport") or []
    except PackageNotFoundError:
        wanted = []
    for each in wanted:
        if "extra ==" in each or not (match := re.match(r"[\w-]+", each)):
            continue
        try:
            yield Finding(f"package {match[0]}", State.OK, version(match[0]))
        except PackageNotFoundError:
            needs = ("parts of mrc do not start", f"pip install '{each}'")
            yield Finding(f"package {match[0]}", State.MISSING, "not installed", *needs)
