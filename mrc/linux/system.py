# SPDX-License-Identifier: Apache-2.0
"""This machine: its programs and which package is missing, its files, its processes, the rates of
its interfaces, the time of its processors, the kernel's release, memory and descriptors.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import resource
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path

from msgspec import Struct

from mrc.errors import ConfigError, StateError
from mrc.units import counted

# ---- Programs ------------------------------------------------------------------------------------


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


# ---- Files that are written whole or not at all: a full disk leaves no half of one ---------------


def check_writable(*paths: str | Path | None) -> None:
    """Raises the OSError that `write_whole` would: before a work that takes long, not after it."""
    for path in (Path(each) for each in paths if each is not None):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if path.is_file() or not path.exists():
            temporary, opened = _open_beside(path, path.resolve(), 0o600)
            os.close(opened)
            temporary.unlink()


def write_whole(path: Path, data: bytes, *, mode: int = 0o666, new: bool = False) -> None:
    """Writes a file, or leaves what was there. Raises OSError; `new`: FileExistsError if there is
    one already.
    """
    if not new and path.exists() and not path.is_file():
        path.write_bytes(data)  # a pipe, or /dev/stdout
        return
    target = path if new else path.resolve()  # a link stays
    temporary, opened = _open_beside(path, target, mode)
    try:
        with os.fdopen(opened, "wb") as file:
            file.write(data)
        if new:
            os.link(temporary, target)
        else:
            os.replace(temporary, target)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _open_beside(path: Path, target: Path, mode: int) -> tuple[Path, int]:
    """A new file beside the target, and its descriptor. Errors name `path`."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        return temporary, os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        error.filename = str(path)
        raise


# ---- Processes -----------------------------------------------------------------------------------


class Process(Struct, frozen=True):
    """A process, as /proc/PID/stat shows it."""

    name: str = ""
    state: str = ""
    """as in ps(1)"""

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it."""
        return self.state == "T"

    @property
    def is_traced(self) -> bool:
        """Whether a debugger has stopped it."""
        return self.state == "t"


def process(pid: int) -> Process:
    """A process; without name and state if it has ended or is in another PID namespace."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return Process()
    before, _, after = stat.rpartition(")")  # the name is in parentheses, and may have some itself
    return Process(before.partition("(")[2], after.split()[0])


# ---- Interfaces and addresses -------------------------------------------------------------------


UNKNOWN_BPS = 10_000_000_000


def links_bps(nics: Iterable[str], sysfs: Path = Path("/sys/class/net")) -> int:
    """Sum of the interfaces' rates. An interface without a known rate counts as 10 Gbit/s."""
    total = 0
    for nic in sorted(set(nics)):
        try:
            mbps = int((sysfs / nic / "speed").read_text())
        except (OSError, ValueError):  # a virtual or wireless interface, or in another namespace
            mbps = 0
        total += mbps * 1_000_000 if mbps > 0 else UNKNOWN_BPS
    return total


def is_of_this_machine(host: str) -> bool:
    """Whether `host`, with or without a port, is localhost or a loopback address: names that no
    name server can redirect.
    """
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host
    if name.count(":") == 1:
        name = name.partition(":")[0]
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"


# ---- Processors ----------------------------------------------------------------------------------


Times = tuple[float, float, float]
"""Seconds of all processors since the machine started: in total, used by programs and the kernel,
and withheld by a hypervisor.
"""


def stolen_seconds() -> float:
    """Time that a hypervisor has withheld from this machine so far, over all processors."""
    return processor_times()[2]


def processor_times() -> Times:
    """So far."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    ticks = [int(word) for word in words[1:9]]  # later words are also in the first ones
    _user, _nice, _system, idle, waiting, _irq, _softirq, stolen = ticks
    hertz = os.sysconf("SC_CLK_TCK")
    total = sum(ticks)
    return total / hertz, (total - idle - waiting - stolen) / hertz, stolen / hertz


def release() -> tuple[int, ...]:
    """The first two numbers of the kernel's release: (6, 12)."""
    return tuple(int(each) for each in re.findall(r"\d+", os.uname().release)[:2])


def leave_out_of_cores() -> None:
    """Core dumps of this process, and of its children, hold no memory from now on.

    Debuggers and /proc work as before, which PR_SET_DUMPABLE would change.
    """
    with suppress(OSError):  # a kernel without core dumps
        Path("/proc/self/coredump_filter").write_text("0x10")  # bits of core(5): ELF headers


# ---- Memory --------------------------------------------------------------------------------------


@contextmanager
def anonymous_memory(length: int) -> Iterator[mmap.mmap]:
    """Memory in huge pages, if the kernel has them. The end of the context unmaps it at once: what
    refers to it may wait long for the collector. Only memory that an interrupted end leaves
    registered, or a stuck thread in use, is unmapped with the last reference.
    """
    memory = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        yield memory
    finally:
        with suppress(BufferError):
            memory.close()


# ---- Descriptors ---------------------------------------------------------------------------------


_LEAST_FILES = 64  # that a process can open
_FIRST_FILES = 32  # of its loop, sockets and modules


def raise_descriptor_limit() -> None:
    """Raises this process's limit of open files to the hard limit: each peer needs one file.

    Raises ConfigError if that is too low to begin, or most are open already: libuv would abort.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _LEAST_FILES:
        raise ConfigError(
            f"at most {counted(hard, 'open file')} (ulimit -Hn): mrc needs {_LEAST_FILES}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    opened: list[int] = []
    try:
        while len(opened) < _FIRST_FILES:
            opened.append(os.eventfd(0))  # needs no file: /dev/null may be missing
    except OSError as error:
        why = str(error.strerror).lower()
        raise ConfigError(f"{why}: mrc needs {_FIRST_FILES} more to begin (ulimit -n)") from error
    finally:
        for each in opened:
            os.close(each)
