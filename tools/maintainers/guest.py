# SPDX-License-Identifier: Apache-2.0
"""A machine of QEMU that runs one of Debian's kernels over folders of this machine."""

from __future__ import annotations

import lzma
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from debian import Archive, DebianError, unpack, where

MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
OPTIONS = (
    "-display", "none", "-monitor", "none", "-serial", "stdio", "-nic", "none", "-no-reboot",
)  # fmt: skip

# In the initramfs: load the modules of the root file system, mount it with a writable layer on top,
# and switch to it.
INIT = """\
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
for module in /modules/*; do /bin/busybox insmod "$module"; done
/bin/busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=loose,ro root /lower
/bin/busybox mount -t tmpfs -o size=75% tmpfs /layer
/bin/busybox mkdir /layer/upper /layer/work
options=lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work,xino=off
/bin/busybox mount -t overlay -o "$options" overlay /new
/bin/busybox mkdir -p /new/run
/bin/busybox cp /stage2 /new/mrc-guest-init
/bin/busybox umount /proc /sys
exec /bin/busybox switch_root /new /bin/sh /mrc-guest-init
"""


def unpack_kernel(archive: Archive, suite: str, name: str, target: Path) -> None:
    """Downloads the newest kernel, on which Debian's package `name` depends, and unpacks it."""
    shown = archive.apt("apt-cache", "show", f"{name}/{suite}")
    depends = re.search(r"^Depends: (linux-image-\S+)", shown, re.MULTILINE)
    if depends is None:
        raise DebianError(f"{name} of {suite} does not depend on a kernel package")
    archive.apt("apt-get", "download", "-qq", depends[1])
    package = next(iter(sorted(archive.work.glob(f"{depends[1]}_*.deb"))))
    shutil.rmtree(target, ignore_errors=True)
    unpack(package, target)
    package.unlink()
    depmod = [where("depmod") or "depmod", "-b", str(target), release_of(target)]
    subprocess.run(depmod, check=True)
    (target / "complete").touch()


def release_of(kernel: Path) -> str:
    return next((kernel / "lib" / "modules").iterdir()).name


def boot_modules(kernel: Path) -> list[Path]:
    """The modules for the root file system, each after its dependencies."""
    folder = kernel / "lib" / "modules" / release_of(kernel)
    depends = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        name, _, others = line.partition(":")
        depends[name] = others.split()
    stems = {Path(name).name.split(".")[0]: name for name in depends}
    order: list[str] = []
    for stem in MODULES:
        if found := stems.get(stem):  # absent: built in
            order += [each for each in [*reversed(depends[found]), found] if each not in order]
    return [folder / name for name in order]


def cpio(entries: list[tuple[str, int, bytes]]) -> bytes:
    """The archive that the kernel unpacks at boot, from names, modes with file type, contents."""
    out = bytearray()
    for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        # inode, mode, uid, gid, links, mtime, size, four devices, length of the name, checksum
        head = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        out += b"070701" + b"".join(b"%08x" % value for value in head) + name.encode() + b"\0"
        out += b"\0" * (-len(out) % 4) + content
        out += b"\0" * (-len(out) % 4)
    return bytes(out)


def initramfs(kernel: Path, busybox: Path, script: str) -> bytes:
    """The initramfs: it switches to the folder with the tag `root` and runs a script there."""
    folders = ["bin", "proc", "sys", "dev", "lower", "layer", "new", "modules"]
    entries = [(name, 0o040755, b"") for name in folders]
    entries += [("init", 0o100755, INIT.encode()), ("stage2", 0o100755, script.encode())]
    entries.append(("bin/busybox", 0o100755, busybox.read_bytes()))
    for number, path in enumerate(boot_modules(kernel)):
        content = path.read_bytes()
        content = lzma.decompress(content) if path.suffix == ".xz" else content
        entries.append((f"modules/{number:02}-{path.name.removesuffix('.xz')}", 0o100644, content))
    return cpio(entries)


def shared(folder: Path, tag: str) -> list[str]:
    """The options that show a folder of this machine to the guest, which cannot change it."""
    what = f"local,path={folder},mount_tag={tag}"
    return ["-virtfs", f"{what},security_model=none,readonly=on,multidevs=remap"]


def run(
    machine: Sequence[str], kernel: Path, append: str, initramfs: bytes, log: Path, seconds: float
) -> bool:
    """Runs a guest, whose console goes to the log, until it ends. False: it did not end in time."""
    packed = log.with_suffix(".initramfs")
    packed.write_bytes(initramfs)
    image = kernel / "boot" / f"vmlinuz-{release_of(kernel)}"
    command = [*machine, *OPTIONS, "-kernel", str(image), "-initrd", str(packed)]
    command += ["-append", f"{append} quiet panic=-1"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file,
                                   stderr=subprocess.STDOUT)  # fmt: skip
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            process.kill()
            process.wait()
    return True


def console(log: Path) -> str:
    return log.read_text(errors="replace").replace("\r", "")
