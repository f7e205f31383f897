# SPDX-License-Identifier: Apache-2.0
"""Whether the installed torch can run over mrc: a row of `mrc doctor`. It does not import torch."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from mrc.results.doctor import Finding, State
from mrc.torch.abi import RANGE, TorchError, check_library, check_version
from mrc.torch.build import compiler

NAME = "torch"
_LACKS = "no torch.distributed over mrc"


def examine() -> list[Finding]:
    """One finding. Loads torch's libraries, which takes half a second."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return _limited("not installed", "pip install 'mrc-transport[torch]'")
    try:
        found = version("torch")
    except PackageNotFoundError:
        found = "of unknown version"
    try:
        check_version(found)
        check_library(found, Path(spec.origin).parent / "lib" / "libtorch_cpu.so")
    except TorchError as error:
        return _limited(str(error).partition("; ")[0], f"install torch {RANGE}")
    if compiler() is None:
        return _limited(f"torch {found} fits, but there is no g++", "apt-get install g++")
    return [Finding(NAME, State.OK, f"torch {found}; GLOO_DEVICE_TRANSPORT=MRC selects mrc")]


def _limited(found: str, remedy: str) -> list[Finding]:
    return [Finding(NAME, State.LIMITED, found, _LACKS, remedy)]
