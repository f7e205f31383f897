# SPDX-License-Identifier: Apache-2.0
"""Test beds for ordinary users, in a user namespace where the user is root.

In it /run is empty and writable, so names, locks and files work as for root. The keeper, a process
that only sleeps, holds these namespaces from the first `mrc testbed up` to the last `down`. Every
command in between joins them. Commands of root do not use any of this, unless root lacks a
capability that test beds require, as in most containers.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from msgspec import Struct

from mrc.errors import StateError
from mrc.linux import netns, system

PROGRAMS = ("unshare", "sh", "mount")
_NEW = "-Urnm"  # namespaces
_PREPARE = "/bin/mount -t tmpfs tmpfs /run && "
SHELL = f"unshare {_NEW} sh -c '{_PREPARE}exec bash'"
REMEDY = "sysctl -w user.max_user_namespaces=1000 kernel.apparmor_restrict_unprivileged_userns=0"

_FILE = "keeper"
_PATIENCE = 5.0  # seconds for the keeper to end

KEEPER = "MRC_KEEPER"
"""environment variable with the keeper's process id, set in processes inside its namespaces"""


class _Lock(Struct, frozen=True):
    """The file that names the keeper. Every process inside locks it shared, so that no command ends
    the keeper meanwhile. The folders are open because nothing inside sees their paths.
    """

    file: int
    folder: int
    parent: int
    name: str
    """of the folder: inside, the user has another number"""

    def exists(self) -> bool:
        """False after another command removed the file."""
        return os.fstat(self.file).st_nlink > 0

    def close(self) -> None:
        for each in (self.file, self.folder, self.parent):
            os.close(each)


_lock: _Lock | None = None


def enter(*, create: bool) -> bool:
    """Become root in the namespaces of the user's test beds. Returns False if there are none.

    Raises StateError where the system forbids user namespaces.
    """
    global _lock
    if not netns.lacks():
        return True
    while (lock := _open(create=create)) is not None:
        fcntl.flock(lock.file, fcntl.LOCK_SH)
        if create and _find(lock.file) is None:
            _start_alone(lock)
        keeper = _find(lock.file)
        if keeper is not None and lock.exists():
            _lock = lock
            folder = os.getcwd()
            netns.join(keeper)
            if Path(folder).is_dir():
                os.chdir(folder)
            os.environ[KEEPER] = str(keeper)
            return True
        if not create:
            _end_if_alone(lock)  # the file outlived a keeper that was killed
            lock.close()
            return False
        lock.close()  # a last `down` was faster
    return False


def run_folder() -> Path | None:
    """The path of the test beds' /run from outside their namespaces; None if there are none."""
    place = _place()
    try:
        if place.lstat().st_uid != os.geteuid():
            return None  # another user made it, so its content is not trusted
        with (place / _FILE).open("rb") as lock:
            keeper = _find(lock.fileno())
    except OSError:
        return None
    return None if keeper is None else Path("/proc", str(keeper), "root", "run")


def leave(in_use: Callable[[], object]) -> None:
    """End the keeper and remove its file and folder, unless a test bed is up or another command is
    in its namespaces.

    Every command calls this when it ends. If several end at once, the last one succeeds, because
    an attempt gives up the shared lock. So `in_use` is asked only when all others are done: a
    command that asked before would see their test beds and still hold its lock. The kernel removes
    the namespaces with the last process inside.
    """
    if _lock is not None:
        _end_if_alone(_lock, in_use)


def has_user(uid: int) -> bool:
    """Whether this namespace has the user. An mrc user namespace has only root."""
    rows = (map(int, line.split()) for line in Path("/proc/self/uid_map").read_text().splitlines())
    return any(first <= uid < first + count for first, _, count in rows)


def become_root() -> None:
    """Restart this command in its own user namespace, unless it may make namespaces here.

    This is for commands whose test bed ends with them. Raises StateError where the system forbids
    user namespaces.
    """
    if netns.lacks():
        argv = command([sys.executable, "-P", "-m", "mrc", *sys.argv[1:]])
        os.execvp(argv[0], argv)


def is_allowed() -> bool:
    """Whether this process may make user namespaces."""
    try:
        unshare, true = system.require("unshare", "true")
        subprocess.run([unshare, _NEW, true], check=True, capture_output=True)
    except (OSError, StateError, subprocess.CalledProcessError):
        return False
    return True


def throw_away(argv: Sequence[str]) -> list[str]:
    """Arguments that run a command with its own namespaces and /run, which end with it."""
    if netns.lacks():
        return command(argv)
    return _prepared("-nm", f'{_PREPARE}exec "$@"', "sh", *argv)


def command(argv: Sequence[str]) -> list[str]:
    """Arguments that run a command as root of its own user namespace.

    Raises StateError where the system forbids user namespaces.
    """
    made = _prepared(_NEW, f'{_PREPARE}exec "$@"', "sh", *argv)
    if not is_allowed():
        raise _forbidden()
    return made


def _forbidden() -> StateError:
    lacks = netns.lacks()
    otherwise = "run as root" if lacks == "root" else f"give this root {lacks}"
    return StateError(f"this system forbids user namespaces: {otherwise}, or allow them: {REMEDY}")


def _prepared(new: str, script: str, *argv: str) -> list[str]:
    """Arguments that run a script in new namespaces. Raises StateError where a program lacks."""
    unshare, shell, _ = system.require(*PROGRAMS)
    return [unshare, new, shell, "-c", script, *argv]


def _place() -> Path:
    """The folder with the file that names the user's keeper."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base, "mrc") if base else Path(f"/tmp/mrc-{os.geteuid()}")


def _open(*, create: bool) -> _Lock | None:
    """Opens the file, or returns None if there is none and `create` is false. Raises StateError."""
    flags = os.O_RDWR | (os.O_CREAT if create else 0)
    while True:
        with ExitStack() as opened:

            def open_in(folder: int | None, name: str | Path, flags: int) -> int:
                made = os.open(name, flags, 0o600, dir_fd=folder)
                opened.callback(os.close, made)
                return made

            try:
                place = _folder(create=create)
                parent = open_in(None, place.parent, os.O_PATH)
                folder = open_in(parent, place.name, os.O_PATH | os.O_NOFOLLOW)
                lock = _Lock(open_in(folder, _FILE, flags), folder, parent, place.name)
            except FileNotFoundError:
                if create:
                    continue  # a last `down` removed the folder meanwhile
                return None
            opened.pop_all()
            return lock


def _folder(*, create: bool) -> Path:
    """Makes that folder, or checks that only the user can write to it. Raises StateError, and
    FileNotFoundError if the folder is missing after all.
    """
    folder = _place()
    try:
        if create:
            folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as exc:
        raise StateError(
            f"cannot make {folder}: {exc.strerror}; set XDG_RUNTIME_DIR to a folder of your own"
        ) from exc
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise StateError(
            f"{folder} does not belong to you alone; set XDG_RUNTIME_DIR to a folder of your own"
        )
    return folder


def _start_alone(lock: _Lock) -> None:
    """Starts a keeper, unless another command does."""
    fcntl.flock(lock.file, fcntl.LOCK_EX)
    try:
        if lock.exists() and _find(lock.file) is None:
            _start(lock.file)
    except StateError:
        _end_if_alone(lock)
        raise
    fcntl.flock(lock.file, fcntl.LOCK_SH)


def _end_if_alone(lock: _Lock, in_use: Callable[[], object] = lambda: False) -> None:
    """Ends the keeper and removes file and folder, unless another command holds the lock, or a
    test bed is in use. Gives up the lock, or holds it alone.
    """
    try:
        fcntl.flock(lock.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    if not lock.exists() or in_use():
        return
    keeper = _find(lock.file)
    if keeper is not None:
        _end(keeper)
    os.unlink(_FILE, dir_fd=lock.folder)
    with suppress(OSError):  # it is not empty, or a command has just made it
        os.rmdir(lock.name, dir_fd=lock.parent)


def _find(lock: int) -> int | None:
    """The process id in the lock file, if that process is still the keeper."""
    words = os.pread(lock, 100, 0).decode().split()
    if len(words) == 2 and _started(words[0]) == words[1]:
        return int(words[0])
    return None


def _start(lock: int) -> None:
    """Starts a keeper. Raises StateError where the system forbids user namespaces, or a program
    is missing.
    """
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    argv = _prepared(_NEW, f"{_PREPARE}echo ready && exec sleep infinity")
    keeper = subprocess.Popen(
        argv, stdin=null, stdout=pipe, stderr=null, cwd="/", start_new_session=True
    )
    assert keeper.stdout is not None
    with keeper.stdout:
        if keeper.stdout.readline() != b"ready\n":
            keeper.wait()
            raise _forbidden()
    keeper.returncode = 0  # the keeper outlives us: Popen must not warn about it
    os.truncate(lock, 0)
    os.pwrite(lock, f"{keeper.pid} {_started(str(keeper.pid))}".encode(), 0)


def _end(keeper: int) -> None:
    """Kills the keeper and waits for its end."""
    with suppress(ProcessLookupError):
        process = os.pidfd_open(keeper)
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            select.select([process], [], [], _PATIENCE)
        finally:
            os.close(process)


def _started(pid: str) -> str | None:
    """Start time of a process, in ticks since boot; None if it has ended."""
    try:
        words = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else words[19]
