# SPDX-License-Identifier: Apache-2.0
"""Time limits of tests: seconds on the usual machine, scaled up on slower ones."""

from __future__ import annotations

import os

SLOWNESS = float(os.environ.get("MRC_TEST_SLOWNESS", "1"))
"""times as long as on the usual machine; tools/kernels sets it for its emulated processor"""


def limit(seconds: float) -> float:
    return seconds * SLOWNESS
