# SPDX-License-Identifier: Apache-2.0
"""The programs of the system that test beds run."""

from __future__ import annotations

import os
import shutil

from mrc.errors import StateError

PACKAGES = {"ip": "iproute2", "nft": "nftables", "unshare": "util-linux"}
"""program -> Debian package"""

SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
"""where Debian installs them; the PATH of an ordinary user lacks /usr/sbin"""


def find(name: str) -> str:
    """The path of one of PACKAGES. Raises StateError, with the remedy, if it is not installed."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PATH}")
    if found is None:
        raise StateError(f"{name} is missing: apt-get install {PACKAGES[name]}")
    return found
