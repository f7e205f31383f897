# SPDX-License-Identifier: Apache-2.0
"""Test beds for ordinary users: root of a user namespace of one's own is enough.

There /run is empty and writable, so names, locks and files work as they do for root, and all of
it disappears with the last process inside.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from mrc.errors import StateError

_UNSHARE = ("unshare", "-Urnm")
_PREPARE = "mount -t tmpfs tmpfs /run && "
REMEDY = "sysctl -w user.max_user_namespaces=1000 kernel.apparmor_restrict_unprivileged_userns=0"
SHELL = f"{' '.join(_UNSHARE)} sh -c '{_PREPARE}exec bash'"


def require_root() -> None:
    """Raises StateError, which says how to get what is missing."""
    if os.geteuid() != 0:
        raise StateError(f"this needs root; without it, first open a shell with: {SHELL}")


def become_root() -> None:
    """For a command whose test bed ends with it: start it anew in a user namespace, unless root.

    Raises StateError where the system forbids user namespaces.
    """
    if os.geteuid() != 0:
        argv = command([sys.executable, "-m", "mrc", *sys.argv[1:]])
        os.execvp(argv[0], argv)


def is_allowed() -> bool:
    """Whether an ordinary user may make user namespaces."""
    try:
        subprocess.run([*_UNSHARE, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def throw_away(argv: Sequence[str]) -> list[str]:
    """The arguments that run a command with namespaces and a /run of its own, which end with it."""
    if os.geteuid() != 0:
        return command(argv)
    return ["unshare", "-nm", "sh", "-c", f'{_PREPARE}exec "$@"', "sh", *argv]


def command(argv: Sequence[str]) -> list[str]:
    """The arguments that run a command as root of a user namespace of its own.

    Raises StateError where the system forbids user namespaces.
    """
    if not is_allowed():
        raise StateError(f"this needs root: user namespaces are not allowed here; {REMEDY}")
    return [*_UNSHARE, "sh", "-c", f'{_PREPARE}exec "$@"', "sh", *argv]
