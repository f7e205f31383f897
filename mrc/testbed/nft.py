# SPDX-License-Identifier: Apache-2.0
"""Runs nftables scripts in namespaces, all of them at once."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

from mrc import netns
from mrc.errors import NetlinkError

# Where Debian keeps nft; the PATH of an ordinary user, root of a namespace or not, leads elsewhere.
SYSTEM_PATH = "/usr/sbin:/sbin"


def apply(scripts: Mapping[str, str]) -> None:
    """Carry out one script per namespace, each as one transaction.

    Raises NetlinkError for the first that nft refuses, after all have ended.
    """
    running = []
    try:
        for namespace, script in scripts.items():
            with netns.inside(namespace):
                running.append((namespace, script, _start()))
    finally:
        answers = [
            (namespace, process.communicate(script)[1], process.returncode)
            for namespace, script, process in running
        ]
    for namespace, answer, code in answers:
        if code != 0:
            reason = answer.strip().splitlines()[0] if answer.strip() else f"exit code {code}"
            raise NetlinkError(f"nft in {namespace}: {reason}")


def _start() -> subprocess.Popen[str]:
    program = shutil.which("nft", path=f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PATH}")
    if program is None:
        raise NetlinkError("nft is missing: apt-get install nftables")
    pipe = subprocess.PIPE
    return subprocess.Popen([program, "-f", "-"], stdin=pipe, stderr=pipe, text=True)
