# SPDX-License-Identifier: Apache-2.0
"""Test beds for ordinary users: root of a user namespace of one's own is enough.

There /run is empty and writable, so names, locks and files work as they do for root. A process
that only sleeps, the keeper, holds these namespaces from the first `mrc testbed up` to the last
`down`; every command in between joins them. Who is root already needs none of it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from mrc.errors import StateError
from mrc.linux import netns

_UNSHARE = ("unshare", "-Urnm")
_PREPARE = "mount -t tmpfs tmpfs /run && "
SHELL = f"{' '.join(_UNSHARE)} sh -c '{_PREPARE}exec bash'"
REMEDY = "sysctl -w user.max_user_namespaces=1000 kernel.apparmor_restrict_unprivileged_userns=0"

KEEPER = "MRC_KEEPER"
"""environment variable: the keeper's process id, in what has joined its namespaces"""

# Locked, shared, by whoever has joined: nobody ends the keeper meanwhile.
_lock: int | None = None


def enter(*, create: bool) -> bool:
    """Become root of the namespaces that hold the user's test beds; False if there are none.

    Raises StateError where the system forbids user namespaces.
    """
    global _lock
    if os.geteuid() == 0:
        return True
    lock = os.open(_folder() / "keeper", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    keeper = _find(lock)
    if keeper is None and create:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keeper = _find(lock) or _start(lock)
        fcntl.flock(lock, fcntl.LOCK_SH)
    if keeper is None:
        os.close(lock)
        return False
    _lock = lock
    folder = os.getcwd()
    netns.join(keeper)
    if Path(folder).is_dir():
        os.chdir(folder)
    os.environ[KEEPER] = str(keeper)
    return True


def run_folder() -> Path | None:
    """What is /run for the user's test beds, seen from outside of them; None if there are none."""
    place = _place()
    try:
        if place.lstat().st_uid != os.geteuid():
            return None  # somebody else made it, to be believed
        with (place / "keeper").open("rb") as lock:
            keeper = _find(lock.fileno())
    except OSError:
        return None
    return None if keeper is None else Path("/proc", str(keeper), "root", "run")


def leave_for_good() -> None:
    """End the keeper, once the last test bed is down, unless another command uses its namespaces.
    The kernel removes them with the last process inside.
    """
    if _lock is None:
        return
    try:
        fcntl.flock(_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    keeper = _find(_lock)
    if keeper is not None:
        os.kill(keeper, signal.SIGKILL)
    os.truncate(_lock, 0)


def has_user(uid: int) -> bool:
    """Whether a process here can be a user's; in a namespace of ours there is only one."""
    rows = (map(int, line.split()) for line in Path("/proc/self/uid_map").read_text().splitlines())
    return any(first <= uid < first + count for first, _, count in rows)


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


def _place() -> Path:
    """Where the user's keeper is written down."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base, "mrc") if base else Path(f"/tmp/mrc-{os.geteuid()}")


def _folder() -> Path:
    """The same, when it is there and nobody else's. Raises StateError."""
    folder = _place()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as exc:
        raise StateError(f"{folder}: {exc.strerror}; set XDG_RUNTIME_DIR") from exc
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise StateError(f"{folder} is not a folder of yours alone; set XDG_RUNTIME_DIR")
    return folder


def _find(lock: int) -> int | None:
    """The keeper that is written down, if it still is the process that it was."""
    words = os.pread(lock, 100, 0).decode().split()
    if len(words) == 2 and _started(words[0]) == words[1]:
        return int(words[0])
    return None


def _start(lock: int) -> int:
    """Raises StateError where the system forbids user namespaces."""
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    script = f"{_PREPARE}echo ready && exec sleep infinity"
    argv = [*_UNSHARE, "sh", "-c", script]
    try:
        keeper = subprocess.Popen(
            argv, stdin=null, stdout=pipe, stderr=null, cwd="/", start_new_session=True
        )
    except OSError as exc:
        raise StateError(f"cannot start {argv[0]}: apt-get install util-linux") from exc
    assert keeper.stdout is not None
    with keeper.stdout:
        if keeper.stdout.readline() != b"ready\n":
            keeper.wait()
            raise StateError(f"this needs root: user namespaces are not allowed here; {REMEDY}")
    keeper.returncode = 0  # it stays when we end
    os.truncate(lock, 0)
    os.pwrite(lock, f"{keeper.pid} {_started(str(keeper.pid))}".encode(), 0)
    return keeper.pid


def _started(pid: str) -> str | None:
    """When a process began, in ticks since the machine did; None if it has ended."""
    try:
        words = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else words[19]
