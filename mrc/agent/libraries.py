# SPDX-License-Identifier: Apache-2.0
"""The libraries for C programs that are built with mrc, and their rows of `mrc doctor`. A build
without one of them succeeds.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from mrc.agent import socket as agent_socket
from mrc.agent.socket import TakenError
from mrc.doctor import Finding, State
from mrc.errors import ConfigError

FOLDER = Path(__file__).resolve().parent.parent / "lib"
LIBMRC, LIBMRC_CM, PROVIDER = "libmrc.so.1", "libmrc-cm.so.1", "libmrc-fi.so"
LOADED_NAME = "libibverbs.so"
"""libmrc under the name by which programs open RDMA's library at run time"""

_HEADERS = {LIBMRC: "libibverbs-dev", LIBMRC_CM: "librdmacm-dev", PROVIDER: "libfabric-dev"}


def why_missing(name: str) -> tuple[str, str] | None:
    """If a library is not there: what happened, and the remedy."""
    if (FOLDER / name).exists():
        return None
    failure = FOLDER / f"{name}.error"  # by setup.py
    if not failure.exists():
        return "not built", f"install {_HEADERS[name]}, then mrc again"
    remedy = f"install another version of {_HEADERS[name]}, then mrc again"
    return f"not built: {failure.read_text().strip()}", remedy


def load(*names: str) -> str | None:
    """Loads libraries as a program does. Returns the first error message, or None."""
    try:
        for name in names:
            ctypes.CDLL(str(FOLDER / name))
    except OSError as error:
        return str(error)
    return None


def refuse_folder(separators: str, reader: str) -> None:
    """Raises ConfigError if the path of FOLDER has one of these, at which its reader splits it."""
    if found := re.search(f"[{separators}]", str(FOLDER)):
        raise ConfigError(
            f"mrc's libraries are in '{FOLDER}', which {reader} splits at"
            f" '{found.group()}'; remedy: install mrc in a folder without it"
        )


def preloading(names: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables with which ld.so loads these libraries ahead of a program's, and finds those
    in FOLDER by name. Raises ConfigError for a path that it would split.
    """
    refuse_folder(":;", "LD_LIBRARY_PATH")
    folder = str(FOLDER)
    # Nothing quotes a blank in LD_PRELOAD, but a name without a folder is looked up.
    bare = re.search(r"\s", folder) is not None
    ours = [name if bare else f"{folder}/{name}" for name in names]
    others = [each for each in environ.get("LD_PRELOAD", "").split() if each not in ours]
    paths = [each for each in environ.get("LD_LIBRARY_PATH", "").split(":") if each]
    return {
        "LD_PRELOAD": " ".join([*ours, *others]),
        "LD_LIBRARY_PATH": ":".join([folder, *(each for each in paths if each != folder)]),
    }


def examine() -> list[Finding]:
    """What programs in C need of this machine."""
    no_cm = "mrc run --rc has no rdma_cm: programs such as rping cannot connect"
    no_mpi = "no mrc run --mpi: MPI programs cannot use mrc"
    return [
        _verbs(),
        _library("libmrc-cm", "rdma_cm for mrc run --rc", no_cm, LIBMRC_CM),
        _library("libmrc-fi", "provider mrc", no_mpi, PROVIDER),
    ]


def _verbs() -> Finding:
    """The library for programs in C, and the device that they see."""
    lacks = "no mrc run: programs for RDMA verbs cannot use mrc"
    try:
        runs = agent_socket.is_open(agent_socket.name_of(os.environ))
    except TakenError as error:
        return Finding("libmrc", State.LIMITED, error.found, lacks, error.remedy)
    found = f"device mrc0; {'an agent runs' if runs else 'no agent runs'}"
    return _library("libmrc", found, lacks, LIBMRC, LOADED_NAME)


def _library(name: str, found: str, lacks: str, *files: str) -> Finding:
    """A library for C programs: the first file, which may have another name too."""
    if why := why_missing(files[0]):
        return Finding(name, State.LIMITED, why[0], lacks, why[1])
    if error := load(*files):
        return Finding(name, State.LIMITED, f"does not load: {error}", lacks, "install mrc again")
    return Finding(name, State.OK, found)
