# SPDX-License-Identifier: Apache-2.0
"""Tests mrc on aarch64, in QEMU, on a machine with other processors.

With Debian's cross compiler, and its arm64 packages in a folder.
QEMU runs a program in one of two ways. `emulated` translates its system calls, but QEMU does not
know all options of sockets. `run_in_guest` boots a kernel for arm64, with pages of 16 KiB.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import checkout
import guest
from debian import Archive, DebianError, need, unpack, where

SUITE = "bookworm"  # its glibc is 2.36, its Python 3.11
KERNEL, KERNEL_SUITE = "linux-image-arm64-16k", "bookworm-backports"
TUPLE = "aarch64-linux-gnu"
COMPILER, ARCHIVER, EMULATOR = f"{TUPLE}-gcc", f"{TUPLE}-gcc-ar", "qemu-aarch64"
MACHINE = "qemu-system-aarch64"
TO_BUILD = {COMPILER: "gcc-aarch64-linux-gnu"}
TO_RUN = {EMULATOR: "qemu-user", MACHINE: "qemu-system-arm", "depmod": "kmod"}
PACKAGES = (
    "busybox-static", "libc6-dev", "libfabric-dev", "libibverbs-dev", "libisal-dev",
    "libpython3.11-dev", "librdmacm-dev", "libssl3", "python3.11", "zlib1g",
)  # fmt: skip
CONTENTS = " ".join((SUITE, *PACKAGES, KERNEL_SUITE, KERNEL))
WORK = checkout.CACHE / "mrc-aarch64"
ROOT = WORK / "root"
"""the root folder of a Debian for arm64 with these packages"""

BOOTED = WORK / "kernel"
PYTHON = ROOT / "usr" / "bin" / "python3.11"


def lacks() -> str:
    """What is missing to build and run programs; empty: nothing."""
    if platform.machine() == "aarch64":
        return "this machine is aarch64: tools/test tests it"
    missing = [program for program in TO_BUILD | TO_RUN if where(program) is None]
    missing += [str(each) for each in (ROOT, BOOTED) if not _is_complete(each)]
    return f"{', '.join(missing)}: run tools/maintainers/aarch64" if missing else ""


def prepare_build() -> None:
    """Installs the compiler as root, and downloads the packages (40 MB). Raises DebianError."""
    need(TO_BUILD)
    if _is_complete(ROOT):
        return
    archive = _archive()
    archive.apt(
        "apt-get", "install", "-y", "-qq", "--download-only", "--no-install-recommends", *PACKAGES
    )
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        made = Path(folder, "root")
        for package in sorted((WORK / "cache" / "archives").glob("*.deb")):
            unpack(package, made)
        (made / "bin" / "sh").symlink_to("busybox")
        (made / "complete").write_text(CONTENTS)
        shutil.rmtree(ROOT, ignore_errors=True)
        made.rename(ROOT)
    shutil.rmtree(WORK / "cache")


def prepare() -> None:
    """The same, with QEMU and a kernel (70 MB)."""
    prepare_build()
    need(TO_RUN)
    if not _is_complete(BOOTED):
        guest.unpack_kernel(_archive(), KERNEL_SUITE, KERNEL, BOOTED)
        (BOOTED / "complete").write_text(CONTENTS)


def _archive() -> Archive:
    print(f"aarch64: downloading Debian's packages to {WORK}", file=sys.stderr, flush=True)
    archive = Archive(WORK, [SUITE, KERNEL_SUITE], "arm64")
    archive.apt("apt-get", "update", "-qq")
    return archive


def _is_complete(folder: Path) -> bool:
    stamp = folder / "complete"
    return stamp.exists() and stamp.read_text() == CONTENTS


def emulated(*command: str | Path) -> list[str]:
    """The command that runs an aarch64 program here."""
    return [EMULATOR, "-L", str(ROOT), *map(str, command)]


def compiler() -> list[str]:
    """The compiler and its options: headers and libraries only from ROOT, not those that come with
    the compiler, which may require a newer glibc.
    """
    asked = subprocess.run(
        [COMPILER, "-print-file-name=include"], capture_output=True, text=True, check=True
    )
    headers = (asked.stdout.strip(), ROOT / "usr/include" / TUPLE, ROOT / "usr/include")
    options = ["-nostdinc", *(f"-isystem{each}" for each in headers)]
    return [COMPILER, f"--sysroot={ROOT}", f"-B{ROOT / 'usr/lib' / TUPLE}/", *options]


# The guest mounts this machine's files at /host. It says where each command begins and ends.
SCRIPT = """\
export HOME=/root TERM=dumb LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin
busybox mkdir -p /proc /sys /dev /tmp /host /root
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
busybox mount -t devtmpfs devtmpfs /dev
busybox mkdir -p /dev/shm
for folder in /dev/shm /run /tmp; do busybox mount -t tmpfs tmpfs $folder; done
busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=loose,ro host /host
busybox ip link set lo up
cd /tmp
{commands}
echo o > /proc/sysrq-trigger
busybox sleep 60
"""
MARK = "mrc-aarch64:"


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended in a guest."""

    returncode: int
    output: str


def run_in_guest(commands: Sequence[Sequence[str | Path]], seconds: float) -> list[Ended]:
    """Boots a guest, and runs the commands one after another. Those that `seconds` cut off are
    missing at the end. Absolute paths of this machine are below /host there.
    """
    lines = [
        f"echo {MARK} begin; {shlex.join(map(str, each))} 2>&1; echo {MARK} end $?"
        for each in commands
    ]
    machine = [MACHINE, "-M", "virt", "-cpu", "neoverse-n1", "-smp", "2", "-m", "2G"]
    machine += [*guest.shared(ROOT, "root"), *guest.shared(Path("/"), "host")]
    script = SCRIPT.format(commands="\n".join(lines))
    initramfs = guest.initramfs(BOOTED, ROOT / "bin" / "busybox", script)
    with tempfile.TemporaryDirectory(prefix="mrc-aarch64-") as name:
        log = Path(name, "log")
        guest.run(machine, BOOTED, "console=ttyAMA0", initramfs, log, seconds)
        text = guest.console(log)
    found = re.findall(rf"^{MARK} begin\n(.*?)^{MARK} end (\d+)$", text, re.MULTILINE | re.DOTALL)
    if not found:
        raise RuntimeError(f"the guest ran no command:\n{text[-3000:]}")
    return [Ended(int(code), output) for output, code in found]


def build_environment() -> dict[str, str]:
    """The variables with which pip and setuptools build for aarch64."""
    command = " ".join([*compiler(), f"-I{ROOT / 'usr/include/python3.11'}"])
    return {
        "CC": command,
        "LDSHARED": f"{command} -shared",
        "_PYTHON_HOST_PLATFORM": "linux-aarch64",
    }


def strip() -> Path:
    """The program that removes debug information from aarch64 files."""
    return Path(where(f"{TUPLE}-strip") or f"{TUPLE}-strip")


EXAMPLES = """\
examples:
  aarch64               the tests of tests/test_aarch64.py: 20 minutes
  aarch64 -k traces     arguments go to pytest

As root, installs Debian's cross compiler and QEMU with apt-get if they are missing. Downloads
packages of Debian for arm64, with a kernel, to ~/.cache/mrc-aarch64, and unpacks them there
(100 MB, 360 MB unpacked). Does not change the architectures of this machine's dpkg. Exit code 1: a
test failed.
"""


def main() -> int:
    about = (__doc__ or "").partition("\n")[0]
    _, rest = checkout.parser("tools/maintainers/aarch64", about, EXAMPLES).parse_known_args()
    _, _, users = os.environ.pop("PYTHONPATH", "").partition(":")  # behind the folder of `checkout`
    if users:
        os.environ["PYTHONPATH"] = users
    if subprocess.run([checkout.ROOT / "tools" / "setup"], check=False).returncode != 0:
        return 1  # it has named the cause
    try:
        prepare()
    except (DebianError, OSError, subprocess.CalledProcessError) as error:
        print(f"aarch64: {error}", file=sys.stderr)
        return 1
    command = [str(checkout.VENV), "-m", "pytest", "tests/test_aarch64.py", *rest]
    environment = os.environ | {"MRC_WERROR": "1"}
    return subprocess.run(command, cwd=checkout.ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    checkout.run(main)
