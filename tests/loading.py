# SPDX-License-Identifier: Apache-2.0
"""Modules that a new interpreter loads."""

from __future__ import annotations

import subprocess
import sys


def loaded(code: str) -> set[str]:
    """The modules that a new interpreter has loaded after `code`."""
    program = f"{code}\nimport sys\nprint(*sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())
