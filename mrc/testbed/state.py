# SPDX-License-Identifier: Apache-2.0
"""The stored state of a test bed: its folder under /run/mrc, its faults, and the lock.

$MRC_RUN_DIR (default /run/mrc)                       locked while any test bed is changed
$MRC_RUN_DIR/NAME/testbed.json                        parameters, phase, faults, drained parts
$MRC_RUN_DIR/NAME/hH.toml                             configuration of host H
$MRC_RUN_DIR/NAME/hosts                               /etc/hosts for the commands in its hosts
$MRC_RUN_DIR/NAME/resolv.conf                         the same of /etc/resolv.conf, with an uplink
$MRC_RUN_DIR/NAME/early.json                          packets dropped while links came up, by hop
$MRC_RUN_DIR/NAME/owner                              locked by the process that will take it down
$MRC_RUN_DIR/NAME/outside.json                        what `mrc.lab.uplink` has to return
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

from msgspec import Struct, convert, field, to_builtins
from msgspec.structs import replace

from mrc.errors import ConfigError
from mrc.linux.system import write_whole
from mrc.testbed.faults import Fault
from mrc.testbed.plan import BedPlan
from mrc.testbed.shape import Shape, extra

_FILE = "testbed.json"
_EARLY = "early.json"
_OWNER = "owner"


class BedState(Struct, frozen=True):
    """A test bed after the start of its build. It is complete only once `up` is set."""

    shape: Shape
    up: bool = False
    faults: dict[str, Fault] = field(default_factory=dict)
    """target -> its fault"""
    drained: tuple[str, ...] = ()
    """targets that hosts send no traffic over"""
    machines: Any = None
    """those of `mrc.lab.machines`; None: all of it is on this machine"""
    schema: Literal[1] = 1

    def with_faults(self, faults: Mapping[str, Fault]) -> Self:
        return replace(self, faults={**self.faults, **faults})

    def without(self, *targets: str) -> Self:
        kept = {name: fault for name, fault in self.faults.items() if name not in targets}
        return replace(self, faults=kept)


def folder(name: str) -> Path:
    return _base() / name


def config_path(name: str, host: str) -> Path:
    return folder(name) / f"{host}.toml"


def hosts_path(name: str) -> Path:
    return folder(name) / "hosts"


def outside_path(name: str) -> Path:
    """The file of `mrc.lab.uplink`."""
    return folder(name) / "outside.json"


def load(name: str) -> BedState | None:
    """The state of a test bed; None if there is none.

    Raises ConfigError for an invalid file.
    """
    path = folder(name) / _FILE
    try:
        return decode(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"{path}: cannot read: {exc}; mrc testbed down --name {name} removes it"
        ) from exc


def save(name: str, state: BedState) -> None:
    """Writes the state in one step, so that no reader sees half of it."""
    path = folder(name) / _FILE
    fresh = path.with_suffix(".new")
    with _ours(path):
        _write(fresh, json.dumps(encode(state), indent=2) + "\n")
        fresh.rename(path)


def write_files(plan: BedPlan) -> None:
    """The configuration of each host, and the /etc/hosts of all."""
    with _ours(folder(plan.name)):
        for host, text in plan.configs.items():
            _write(config_path(plan.name, host), text)
        _write(hosts_path(plan.name), plan.hosts_file)


def write_resolver(name: str, text: str) -> None:
    """The /etc/resolv.conf of all hosts."""
    with _ours(folder(name)):
        _write(hosts_path(name).with_name("resolv.conf"), text)


def write_early_drops(name: str, drops: Mapping[str, int]) -> None:
    """Packets that the kernel sent on its own while links came up: they count as no drops."""
    with _ours(folder(name)):
        _write(folder(name) / _EARLY, json.dumps(drops))


def early_drops(name: str) -> dict[str, int]:
    try:
        found: dict[str, int] = json.loads((folder(name) / _EARLY).read_text())
    except (OSError, ValueError):  # of an earlier version of mrc
        return {}
    return found


def forget(name: str) -> None:
    """Remove every file of a test bed, if there is one. Raises ConfigError if it cannot."""
    if folder(name).exists():
        with _ours(folder(name)):
            shutil.rmtree(folder(name))


def names() -> list[str]:
    """The names of all test beds, complete or not."""
    return sorted(path.parent.name for path in _base().glob(f"*/{_FILE}"))


def own(name: str) -> int:
    """Marks a test bed as one that ends with this process; returns the descriptor that says so
    while it is open.
    """
    with lock(), _ours(folder(name)):
        opened = os.open(folder(name) / _OWNER, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return opened


def abandoned() -> list[str]:
    """The test beds whose owner has ended without taking them down."""
    with lock():
        return [name for name in names() if _is_abandoned(folder(name) / _OWNER)]


def _is_abandoned(owner: Path) -> bool:
    try:
        opened = os.open(owner, os.O_RDWR)
    except OSError:  # nobody's: only `down` ends it
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(opened)
    return True


@contextmanager
def lock() -> Iterator[None]:
    """Wait until no other process changes a test bed, and make other processes wait."""
    with _ours(_base()):
        _make_folder(_base())
        descriptor = os.open(_base(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _base() -> Path:
    return Path(os.environ.get("MRC_RUN_DIR") or "/run/mrc")


@contextmanager
def _ours(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        why = (exc.strerror or str(exc)).lower()
        who = "; test beds require root" if isinstance(exc, PermissionError) else ""
        raise ConfigError(f"cannot write {path}: {why}{who}") from exc


def _make_folder(path: Path) -> None:
    """Makes a folder that all users can read, because hosts' commands may run as any user."""
    for each in (*reversed(path.parents), path):
        if not each.is_dir():
            each.mkdir(exist_ok=True)
            each.chmod(0o755)


def _write(path: Path, text: str) -> None:
    _make_folder(path.parent)
    write_whole(path, text.encode())
    path.chmod(0o644)


def encode(state: BedState) -> Any:
    """A state for JSON."""
    return to_builtins(state, enc_hook=str)  # str: of the networks


def decode(stored: object) -> BedState:
    """The inverse of `encode`; raises ValueError."""
    if isinstance(stored, dict) and "schema" not in stored:
        raise ValueError("schema is missing")
    found = convert(stored, BedState, dec_hook=lambda kind, text: kind(text))
    if found.machines is None:
        return found
    return replace(found, machines=extra("machines").decode(found.machines))
