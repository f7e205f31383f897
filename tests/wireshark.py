# SPDX-License-Identifier: Apache-2.0
"""Runs tshark on captures of tests."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from slowness import PATIENCE

required = pytest.mark.skipif(
    shutil.which("tshark") is None, reason="tshark is not installed: apt-get install tshark"
)


def tshark(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs tshark. For root, Wireshark 4.4 loads no Lua scripts. In a user namespace of its own
    tshark is not root, but may still read root's files.
    """
    own = ("unshare", "--user") if os.geteuid() == 0 else ()
    done = subprocess.run(
        [*own, "tshark", *arguments], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done
