# SPDX-License-Identifier: Apache-2.0
"""Runs scripts as a person would type them, beside whatever runs on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_OWN_RUN = "mount -t tmpfs tmpfs /run && mkdir /run/netns && exec bash"


def run_apart(script: str, folder: Path, options: str = "-mex") -> subprocess.CompletedProcess[str]:
    """Runs a script with a /run of its own, because the default test bed may be in use.

    `options` of bash: by default the first command that fails ends the script.
    """
    environment = {**os.environ, "SHELL": "/bin/true"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    return subprocess.run(
        ["unshare", "--mount", "bash", "-c", f"{_OWN_RUN} {options}"],
        input=script, capture_output=True, text=True, cwd=folder, env=environment, check=False,
    )  # fmt: skip
