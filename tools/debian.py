# SPDX-License-Identifier: Apache-2.0
"""Debian's packages for a tool: programs that it runs, and files that it unpacks into a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
