# SPDX-License-Identifier: Apache-2.0
"""Test beds for ordinary users, in a user namespace where the user is root.

In it /run is empty and writable, so names, locks and files work as for root. The keeper, a process
that only sleeps, holds these namespaces from the first `mrc testbed up` to the last `down`. Every
command in between joins them. Commands of root do not use any of this.
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

_FORBIDDEN = f"this system forbids user namespaces: run as root, or allow them with {REMEDY}"

KEEPER = "MRC_KEEPER"
"""environment variable with the keeper's process id, set in processes inside its namespaces"""

# Every process inside holds a shared lock, so that no command ends the keeper meanwhile.
_lock: int | None = None


def enter(*, create: bool) -> bool:
    """Become root in the namespaces of the user's test beds. Returns False if there are none.

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
    """The path of the test beds' /run from outside their namespaces; None if there are none."""
    place = _place()
    try:
        if place.lstat().st_uid != os.geteuid():
            return None  # another user made it, so its content is not trusted
        with (place / "keeper").open("rb") as lock:
            keeper = _find(lock.fileno())
    except OSError:
        return None
    return None if keeper is None else Path("/proc", str(keeper), "root", "run")


def leave_for_good() -> None:
    """End the keeper after the last test bed went down, unless another command is in its
    namespaces. The kernel removes the namespaces with the last process inside.
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
    """Whether this namespace has the user. An mrc user namespace has only root."""
    rows = (map(int, line.split()) for line in Path("/proc/self/uid_map").read_text().splitlines())
    return any(first <= uid < first + count for first, _, count in rows)


def become_root() -> None:
    """Restart this command in its own user namespace, unless it runs as root.

    This is for commands whose test bed ends with them. Raises StateError where the system forbids
    user namespaces.
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
    """Arguments that run a command with its own namespaces and /run, which end with it."""
    if os.geteuid() != 0:
        return command(argv)
    return ["unshare", "-nm", "sh", "-c", f'{_PREPARE}exec "$@"', "sh", *argv]


def command(argv: Sequence[str]) -> list[str]:
    """Arguments that run a command as root of its own user namespace.

    Raises StateError where the system forbids user namespaces.
    """
    if not is_allowed():
        raise StateError(_FORBIDDEN)
    return [*_UNSHARE, "sh", "-c", f'{_PREPARE}exec "$@"', "sh", *argv]


def _place() -> Path:
    """The folder with the file that names the user's keeper."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base, "mrc") if base else Path(f"/tmp/mrc-{os.geteuid()}")


def _folder() -> Path:
    """Makes that folder, or checks that only the user can write to it. Raises StateError."""
    folder = _place()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as exc:
        raise StateError(
            f"cannot make {folder}: {exc.strerror}; set XDG_RUNTIME_DIR to a folder of your own"
        ) from exc
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise StateError(
            f"{folder} does not belong to you alone; set XDG_RUNTIME_DIR to a folder of your own"
        )
    return folder


def _find(lock: int) -> int | None:
    """The process id in the lock file, if that process is still the keeper."""
    words = os.pread(lock, 100, 0).decode().split()
    if len(words) == 2 and _started(words[0]) == words[1]:
        return int(words[0])
    return None


def _start(lock: int) -> int:
    """Starts a keeper. Raises StateError where the system forbids user namespaces."""
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    script = f"{_PREPARE}echo ready && exec sleep infinity"
    argv = [*_UNSHARE, "sh", "-c", script]
    try:
        keeper = subprocess.Popen(
            argv, stdin=null, stdout=pipe, stderr=null, cwd="/", start_new_session=True
        )
    except OSError as exc:
        raise StateError(f"cannot start {argv[0]}: run apt-get install util-linux") from exc
    assert keeper.stdout is not None
    with keeper.stdout:
        if keeper.stdout.readline() != b"ready\n":
            keeper.wait()
            raise StateError(_FORBIDDEN)
    keeper.returncode = 0  # the keeper outlives us: Popen must not warn about it
    os.truncate(lock, 0)
    os.pwrite(lock, f"{keeper.pid} {_started(str(keeper.pid))}".encode(), 0)
    return keeper.pid


def _started(pid: str) -> str | None:
    """Start time of a process, in ticks since boot; None if it has ended."""
    try:
        words = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else words[19]
