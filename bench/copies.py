# SPDX-License-Identifier: Apache-2.0
"""Copies of a file from host to host, by the programs that people use: plain, and encrypted.

Each program starts for every copy, as users start it.
"""

from __future__ import annotations

import filecmp
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from bed import Bed
from contenders import Raw
from peers import find, serve_and_run

_SOCAT_PORT, _SSH_PORT, _MRC_PORT = 5003, 5022, 4791
_MRC = [sys.executable, "-m", "mrc"]
_CIPHER = "aes256-gcm@openssh.com"  # the one of sealed packets; ssh's default is slower here


class CopyError(Exception):
    """A copied file differs from its source."""


def check(source: Path, target: Path) -> None:
    """Compares a copy with its source, and removes it. Raises CopyError."""
    if not filecmp.cmp(source, target, shallow=False):
        raise CopyError(f"{target.name} differs from its source")
    target.unlink()


def warm_pages(target: Path, size: int) -> None:
    """Gives the kernel as many free pages as the copy needs, before the copy starts.

    A hypervisor takes free pages back after some seconds, and returns them one page fault at a
    time. Without this, only the first row would pay for that.
    """
    block = bytes(1 << 20)
    with target.open("wb", buffering=0) as file:
        for _ in range(-(-size // len(block))):
            file.write(block)
    target.unlink()


def by_mrc(bed: Bed, source: Path, target: Path) -> Raw:
    """`mrc send` to `mrc recv`. Its own time counts, until the receiver has verified the digest."""
    return _by_mrc(bed, source, target, "--insecure")


def by_sealed_mrc(bed: Bed, source: Path, target: Path) -> Raw:
    """The same between hosts that share a secret: their packets are encrypted."""
    return _by_mrc(bed, source, target, "--secret", str(secret(source.parent)))


def secret(folder: Path) -> Path:
    """The file of a secret in this folder."""
    made = folder / "mrc.secret"
    if not made.exists():
        subprocess.run([*_MRC, "key", "--secret", made], check=True, stdout=subprocess.DEVNULL)
    return made


def _by_mrc(bed: Bed, source: Path, target: Path, *trust: str) -> Raw:
    server = [*_MRC, "recv", "--output", str(target.parent), "--once", *trust]
    client = [*_MRC, "send", "--json", "--quiet", str(source), "h1", *trust]
    output, raw = _copy(bed, server, client, _MRC_PORT, source, target)
    return {**raw, "ns": 8e9 * raw["bytes"] / json.loads(output)["goodput_bits_per_second"]}


def by_socat(bed: Bed, source: Path, target: Path) -> Raw:
    return _by_socat(bed, source, target, f"TCP6-LISTEN:{_SOCAT_PORT}", "TCP6")


def by_tls_socat(bed: Bed, source: Path, target: Path) -> Raw:
    """Over TLS 1.3. Both ends have the same certificate and require it of each other."""
    pem = source.with_name("socat.pem")
    if not pem.exists():
        ask = ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-subj", "/CN=bench"]
        made = subprocess.run(
            [*ask, "-keyout", "-"], check=True, capture_output=True, text=True
        ).stdout
        pem.touch(mode=0o600)
        pem.write_text(made)
    ours = f"cert={pem},cafile={pem}"
    listen = f"OPENSSL-LISTEN:{_SOCAT_PORT},pf=ip6,{ours}"
    return _by_socat(bed, source, target, listen, "OPENSSL", f",{ours},commonname=bench")


def _by_socat(
    bed: Bed, source: Path, target: Path, listen: str, connect: str, options: str = ""
) -> Raw:
    copy = ["socat", "-u", "-b", "1048576"]
    here, there = bed.flows(1)
    server = [*copy, f"{listen},reuseaddr", f"OPEN:{target},creat,trunc"]
    client = [*copy, f"OPEN:{source}", f"{connect}:[{there}]:{_SOCAT_PORT},bind=[{here}]{options}"]
    return _copy(bed, server, client, _SOCAT_PORT, source, target)[1]


def by_scp(bed: Bed, source: Path, target: Path) -> Raw:
    """scp to an own sshd, which serves one connection."""
    key = source.with_name("ssh.key")
    if not key.exists():
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
        subprocess.run(make, check=True)
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd requires it; its own unit makes it
    here, there = bed.flows(1)
    settings = {"HostKey": key, "AuthorizedKeysFile": f"{key}.pub", "PermitRootLogin": "yes",
                "StrictModes": "no", "UsePAM": "no", "Subsystem": "sftp internal-sftp"}  # fmt: skip
    sshd = str(find("sshd"))
    server = [sshd, "-d", "-E", "/dev/null", "-f", "/dev/null", "-p", str(_SSH_PORT)]
    server += _options({name: str(value) for name, value in settings.items()})
    server = ["sh", "-c", '"$@" || :', "sh", *server]  # with -d, sshd always ends with an error
    known = {"BindAddress": here, "StrictHostKeyChecking": "no", "UserKnownHostsFile": "/dev/null"}
    client = ["scp", "-q", "-F", "/dev/null", "-i", str(key), "-P", str(_SSH_PORT), "-c", _CIPHER]
    client += [*_options(known), str(source), f"root@[{there}]:{target}"]
    return _copy(bed, server, client, _SSH_PORT, source, target)[1]


def _options(settings: Mapping[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _copy(
    bed: Bed, server: list[str], client: list[str], port: int, source: Path, target: Path
) -> tuple[str, Raw]:
    """The client's output, and the measurement: time from the client's start to both ends."""
    size = os.path.getsize(source)
    sent, raw = serve_and_run(bed, server, client, port, lambda: warm_pages(target, size))
    return sent.output, {**raw, "bytes": size}
