# SPDX-License-Identifier: Apache-2.0
"""The parts of tools/maintainers/mutate. This one is also a plugin for pytest under coverage: a
program that a test starts reads coverage.ini itself, so that its lines count for this test. Else it
inherits the settings of pytest, which name no test.
"""

from __future__ import annotations

import os


def pytest_sessionstart() -> None:
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
