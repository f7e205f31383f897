# SPDX-License-Identifier: Apache-2.0
"""Named network namespaces under /run/netns, like those of ip(8), but without running ip(8).

Each thread has its own namespace. `inside` moves only the calling thread, so its body must not
wait for an event loop.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mrc.errors import NetlinkError

FOLDER = Path("/run/netns")

_CAPABILITIES = {12: "CAP_NET_ADMIN", 21: "CAP_SYS_ADMIN"}

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
_MS_BIND = 4096
_MS_REC = 16384
_MS_SHARED = 1 << 20
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (*[ctypes.c_char_p] * 3, ctypes.c_ulong, ctypes.c_char_p)


def lacks() -> str:
    """Which privilege this process lacks to make namespaces and links; empty if none.

    Uid 0 alone does not suffice: root of a container usually has no CAP_SYS_ADMIN.
    """
    if os.geteuid() != 0:
        return "root"
    lines = Path("/proc/thread-self/status").read_text().splitlines()
    (effective,) = (int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    missing = [name for bit, name in _CAPABILITIES.items() if not effective >> bit & 1]
    return " and ".join(missing)


def create(name: str) -> None:
    """Make a named namespace.

    Raises NetlinkError when the name is taken or the privilege is missing.
    """
    _prepare_folder()
    path = FOLDER / name
    try:
        path.touch(mode=0o444, exist_ok=False)
    except FileExistsError as exc:
        raise NetlinkError(f"namespace {name} exists already") from exc
    try:
        with _back_at_the_end():
            _call("unshare", _CLONE_NEWNET)
            _call("mount", b"/proc/thread-self/ns/net", bytes(path), b"none", _MS_BIND, None)
    except OSError as exc:
        path.unlink()
        raise NetlinkError(f"cannot create namespace {name}: {_reason(exc)}") from exc


def keep(name: str) -> None:
    """Name the calling thread's own namespace, unless the name exists."""
    _prepare_folder()
    path = FOLDER / name
    if path.exists() and os.path.ismount(path):
        return
    path.touch(mode=0o444)
    try:
        _call("mount", b"/proc/thread-self/ns/net", bytes(path), b"none", _MS_BIND, None)
    except OSError as exc:
        path.unlink()
        raise NetlinkError(f"cannot name namespace {name}: {_reason(exc)}") from exc


def remove(name: str) -> None:
    """Remove the name. The kernel removes the namespace when its last process ends."""
    path = FOLDER / name
    try:
        _call("umount2", bytes(path), _MNT_DETACH)
    except OSError as exc:
        if exc.errno not in (errno.EINVAL, errno.ENOENT):  # both: the name is not a mount
            raise NetlinkError(f"cannot remove namespace {name}: {_reason(exc)}") from exc
    path.unlink(missing_ok=True)


def names() -> list[str]:
    """All named namespaces."""
    return sorted(path.name for path in FOLDER.iterdir()) if FOLDER.is_dir() else []


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Move the calling thread, and processes that it starts meanwhile, into the namespace.

    Raises NetlinkError.
    """
    with _back_at_the_end():
        try:
            namespace = os.open(FOLDER / name, os.O_RDONLY)
        except FileNotFoundError as exc:
            raise NetlinkError(f"no namespace {name}") from exc
        try:
            _call("setns", namespace, _CLONE_NEWNET)
        except OSError as exc:
            raise NetlinkError(f"cannot enter namespace {name}: {_reason(exc)}") from exc
        finally:
            os.close(namespace)
        yield


def join(pid: int) -> None:
    """Move this process into the user, mount and network namespaces of another process.

    This process must have one thread. It becomes root there if its user owns the user namespace.
    Raises NetlinkError.
    """
    try:
        process = os.pidfd_open(pid)
        try:
            _call("setns", process, _CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWNET)
        finally:
            os.close(process)
    except OSError as exc:
        raise NetlinkError(f"cannot join the namespaces of process {pid}: {exc}") from exc


@contextmanager
def _back_at_the_end() -> Iterator[None]:
    origin = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        yield
    finally:
        _call("setns", origin, _CLONE_NEWNET)
        os.close(origin)


def _prepare_folder() -> None:
    """Make the folder a shared mount, so that the names appear in every mount namespace."""
    try:
        FOLDER.mkdir(mode=0o755, exist_ok=True)
        folder = bytes(FOLDER)
        try:
            _call("mount", b"", folder, b"none", _MS_SHARED | _MS_REC, None)
        except OSError as exc:
            if exc.errno != errno.EINVAL:  # EINVAL: not a mount point yet
                raise
            _call("mount", folder, folder, b"none", _MS_BIND | _MS_REC, None)
            _call("mount", b"", folder, b"none", _MS_SHARED | _MS_REC, None)
    except OSError as exc:
        raise NetlinkError(f"cannot prepare {FOLDER}: {_reason(exc)}") from exc


def _call(function: str, *arguments: int | bytes | None) -> None:
    if getattr(_libc, function)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _reason(error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        return "it requires root, or a user namespace: unshare -Urnm"
    return error.strerror or str(error)


def mtu_key(interface: str) -> str:
    """The sysctl of the largest packet that IPv6 sends on an interface."""
    return f"net/ipv6/conf/{interface}/mtu"


def set_sysctls(namespace: str, sysctls: Mapping[str, str]) -> None:
    """Writes values of paths under /proc/sys. Raises NetlinkError."""
    with inside(namespace):
        for key, value in sysctls.items():
            try:
                Path("/proc/sys", key).write_text(value)
            except FileNotFoundError as exc:
                raise NetlinkError(f"no sysctl {key}: it requires a kernel with IPv6") from exc
            except OSError as exc:
                raise NetlinkError(
                    f"cannot set sysctl {key} to {value} in {namespace}: {exc.strerror}"
                ) from exc
