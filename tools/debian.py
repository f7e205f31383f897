# SPDX-License-Identifier: Apache-2.0
"""Debian's packages for a tool: programs that it runs, and files that it unpacks into a folder; and
root file systems of other releases, and commands that run in them.

A root comes from debootstrap and stays as it is. A `Layer` lies over it and takes what commands
write, by overlayfs; it is removed at the end. Commands run in mount and process namespaces of their
own, so that nothing they start or mount outlives them. The network is this machine's, for apt and
pip. It requires root, and only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import checkout

WORK = checkout.CACHE / "mrc-systems"  # of root file systems
MIRROR = "http://deb.debian.org/debian"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


class DebianError(Exception):
    """A package is missing; the message has the cause and the remedy."""


def where(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def need(tools: Mapping[str, str]) -> None:
    """Installs missing programs as root. Otherwise raises DebianError with the command. `tools` has
    the package of each program.
    """
    missing = [package for program, package in tools.items() if where(program) is None]
    if not missing:
        return
    remedy = f"apt-get install {' '.join(missing)}"
    if os.geteuid() != 0 or where("apt-get") is None:
        raise DebianError(f"not installed: {', '.join(missing)}; run sudo {remedy}")
    print(f"apt: installing {' '.join(missing)}", file=sys.stderr, flush=True)
    subprocess.run(["apt-get", "update", "-qq"], capture_output=True, check=False)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})  # fmt: skip
    if done.returncode != 0:
        raise DebianError(f"{remedy} failed: {done.stderr.strip().splitlines()[-1:]}")


@dataclass(frozen=True, slots=True)
class Archive:
    """Debian's archive for one architecture. Its lists, downloads and settings are in `work`; the
    machine's stay unchanged, and no package counts as installed.
    """

    work: Path
    suites: Sequence[str]
    architecture: str

    def apt(self, *command: str) -> str:
        for folder in ("lists/partial", "cache/archives/partial"):
            (self.work / folder).mkdir(parents=True, exist_ok=True)
        sources = [f"deb [signed-by={KEYS}] {MIRROR} {suite} main\n" for suite in self.suites]
        (self.work / "sources.list").write_text("".join(sources))
        (self.work / "status").touch()
        options = {
            "Dir::Etc::SourceList": self.work / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null", "Dir::State": self.work,
            "Dir::State::Lists": self.work / "lists", "Dir::State::Status": self.work / "status",
            "Dir::Cache": self.work / "cache", "APT::Sandbox::User": "root",
            "APT::Architecture": self.architecture, "APT::Architectures": self.architecture,
            "Debug::NoLocking": "1",
        }  # fmt: skip
        settings = [f"-o{name}={value}" for name, value in options.items()]
        if where(command[0]) is None:
            raise DebianError(f"{command[0]} is not installed: this requires Debian's apt")
        full = [command[0], *settings, *command[1:]]
        done = subprocess.run(full, capture_output=True, text=True, check=False, cwd=self.work)
        if done.returncode != 0:
            cause = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise DebianError(f"{' '.join(command)}: {cause}")
        return done.stdout


def unpack(package: Path, target: Path) -> None:
    subprocess.run(["dpkg-deb", "-x", str(package), str(target)], check=True)


# ---- root file systems ---------------------------------------------------------------------------

SCRIPTS = Path("/usr/share/debootstrap/scripts")
CERTIFICATES = Path("/usr/local/share/ca-certificates")  # that this machine trusts beside Debian's
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "net/tun", "fuse", "kvm")
APT = 'Acquire::Check-Valid-Until "false";\n'  # a mirror of testing may be some weeks old
# How this machine reaches its package indexes.
FORWARDED = (
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_DEFAULT_TIMEOUT"),
)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# pivot_root and not chroot: the kernel makes no user namespace for a process in a chroot. The shell
# stays, as the first process of the namespace: it waits for orphans, as an init does.
ENTER = """\
set -e
mount -t overlay overlay -o lowerdir={root},upperdir={layer}/upper,workdir={layer}/work {layer}/top
cd {layer}/top
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup || true
for folder in dev run tmp; do mount -t tmpfs -o mode=0755 tmpfs $folder; done
chmod 1777 tmp
mkdir -p dev/net dev/pts dev/shm
for name in {devices}; do
  if [ -e /dev/$name ]; then : > dev/$name; mount --bind /dev/$name dev/$name; fi
done
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
mount -t tmpfs -o mode=1777 tmpfs dev/shm
{binds}
mkdir -p .outside
pivot_root . .outside
umount -l /.outside
rmdir /.outside
{prepare}
{command}
"""


@dataclass(frozen=True, slots=True)
class Release:
    """A Debian release, by the name of its suite."""

    name: str
    suite: str


def need_debootstrap() -> None:
    """Installs debootstrap if it is missing. Raises DebianError."""
    if os.geteuid() != 0:
        raise DebianError("requires root: debootstrap and overlayfs do; run it with sudo")
    need({"debootstrap": "debootstrap"})


def made(release: Release, work: Path) -> Path:
    """The root of a release; debootstrap makes it if it is not there."""
    root = work / "roots" / release.suite
    if root.exists():
        return root
    need_debootstrap()
    root.parent.mkdir(parents=True, exist_ok=True)
    new = root.with_name(f"{release.suite}.new")
    shutil.rmtree(new, ignore_errors=True)
    command = ["debootstrap", "--variant=minbase", release.suite, str(new), MIRROR]
    if not (SCRIPTS / release.suite).exists():
        command.append(str(SCRIPTS / "sid"))  # that of testing and unstable
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if line.startswith("E:")]
        raise DebianError(f"debootstrap {release.suite}: {(lines or ['failed'])[-1]}")
    if CERTIFICATES.is_dir():  # Debian's ca-certificates reads them when it is installed
        shutil.copytree(CERTIFICATES, new / CERTIFICATES.relative_to("/"), dirs_exist_ok=True)
    new.rename(root)
    return root


@dataclass(frozen=True, slots=True)
class Layer:
    """What commands write over a root."""

    root: Path
    folder: Path

    def path(self, inside: str) -> Path:
        """A path of the layer as this machine sees it, for what has to be there before a run."""
        return self.folder / "upper" / inside.lstrip("/")

    def start(
        self, command: str, output: IO[bytes] | int, *, user: str = "root",
        binds: Mapping[Path, str], environ: Mapping[str, str], prepare: str = "",
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        """Starts a shell command as a user of the root, without a terminal. `binds` shows folders
        of this machine there; before, root runs `prepare` there. Whoever ends the process ends all
        that it has started.
        """
        home = "/root" if user == "root" else f"/home/{user}"
        settings = {"PATH": PATH, "HOME": home, "USER": user, "LANG": "C.UTF-8", "TERM": "dumb"}
        settings |= {name: os.environ[name] for name in FORWARDED if name in os.environ}
        settings |= environ
        inside = ["env", "-i", *(f"{name}={value}" for name, value in settings.items())]
        inside += ["bash", "-c", f"cd; {command}"]
        if user != "root":
            inside = ["runuser", f"--user={user}", "--", *inside]
        script = ENTER.format(
            root=shlex.quote(str(self.root)), layer=shlex.quote(str(self.folder)),
            devices=" ".join(DEVICES), command=shlex.join(inside), prepare=prepare,
            binds="\n".join(
                f"mkdir -p .{shlex.quote(there)}; mount --bind {shlex.quote(str(here))} "
                f".{shlex.quote(there)}" for here, there in binds.items()
            ),
        )  # fmt: skip
        return subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip


@contextlib.contextmanager
def layer(root: Path, work: Path) -> Iterator[Layer]:
    """An empty layer over a root. It is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="layer-", dir=work))
    try:
        for name in ("upper", "work", "top"):
            (folder / name).mkdir()
        (folder / "upper").chmod(0o755)
        new = Layer(root, folder)
        new.path("/etc").mkdir()
        shutil.copy("/etc/resolv.conf", new.path("/etc/resolv.conf"))
        # As every installer makes it; without it, "localhost" is asked of a name server.
        new.path("/etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
        new.path("/etc/apt/apt.conf.d").mkdir(parents=True)
        new.path("/etc/apt/apt.conf.d/90mrc").write_text(APT)
        yield new
    finally:
        shutil.rmtree(folder, ignore_errors=True)
