# SPDX-License-Identifier: Apache-2.0
"""Programs that a command becomes, with the exit codes of env(1) if that fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from mrc.cli.output import print_error
from mrc.linux import programs

_NOT_RUNNABLE = 126
_NOT_FOUND = 127


def refusal(name: str, path: str | None = None) -> tuple[int, str] | None:
    """The exit code and the reason if a program cannot be run; None if it can."""
    if shutil.which(name, path=path) is not None:
        return None
    if os.sep in name and os.path.isdir(name):
        return _NOT_RUNNABLE, f"{name}: is a folder"
    if found := shutil.which(name, os.F_OK, path):
        return _NOT_RUNNABLE, f"{found}: is not executable: chmod +x {found}"
    return _NOT_FOUND, programs.not_found(name)


def refused(prog: str, name: str, path: str | None = None) -> int:
    """Prints why a program cannot be run and returns the exit code; 0: it can."""
    found = refusal(name, path)
    if found is None:
        return 0
    code, why = found
    print_error(prog, why, code, as_json=False)
    return code


def become(prog: str, argv: list[str], environment: Mapping[str, str]) -> int:
    """Replaces this process by a program. Returns an exit code if the kernel refuses it."""
    try:
        os.execvpe(argv[0], argv, environment)
    except FileNotFoundError:
        code, why = _NOT_FOUND, "its interpreter is missing: see its first line"
    except OSError as error:
        code, why = _NOT_RUNNABLE, f"cannot be run: {error.strerror}"
    print_error(prog, f"{argv[0]}: {why}", code, as_json=False)
    return code
