# SPDX-License-Identifier: Apache-2.0
"""The version of the running kernel."""

from __future__ import annotations

import os
import re


def release() -> tuple[int, ...]:
    """The first two numbers of the kernel's release: (6, 12)."""
    return tuple(int(each) for each in re.findall(r"\d+", os.uname().release)[:2])
