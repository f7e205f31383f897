# SPDX-License-Identifier: Apache-2.0
"""Programs of other packages: where they are, and which package is missing."""

from __future__ import annotations

import os
import shutil

from mrc.errors import StateError

SYSTEM_FOLDERS = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Debian installs programs here. The PATH of an ordinary user lacks the sbin folders."""

PACKAGES = {
    "ib_write_bw": "perftest",
    "ibv_devinfo": "ibverbs-utils",
    "ip": "iproute2",
    "iperf3": "iperf3",
    "mount": "mount",
    "mptcpize": "mptcpize",
    "nft": "nftables",
    "nsenter": "util-linux",
    "ping": "iputils-ping",
    "setpriv": "util-linux",
    "sh": "dash",
    "ss": "iproute2",
    "ssh": "openssh-client",
    "sysctl": "procps",
    "tc": "iproute2",
    "true": "coreutils",
    "tshark": "tshark",
    "ucx_perftest": "ucx-utils",
    "unshare": "util-linux",
}
"""Program -> its Debian package."""


def find(name: str) -> str | None:
    """The path of a program; None if it is not installed."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_FOLDERS}")


def not_found(name: str) -> str:
    """The message of a shell about a program that is not installed, with the remedy if known."""
    remedy = f": apt-get install {PACKAGES[name]}" if name in PACKAGES else ""
    return f"{name}: command not found{remedy}"


def require(*names: str) -> list[str]:
    """The paths of these programs. Raises StateError with all that are missing."""
    found = {name: find(name) for name in names}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        packages = dict.fromkeys(PACKAGES[name] for name in missing)
        raise StateError(
            f"{' and '.join(missing)} {verb} missing: apt-get install {' '.join(packages)}"
        )
    return [path for path in found.values() if path is not None]
