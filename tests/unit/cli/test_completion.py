# SPDX-License-Identifier: Apache-2.0
"""`mrc completion`: bash and zsh complete a typed line, as after the command in the help."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pytest
from processes import terminal

from mrc import products
from mrc.cli.completion import EXAMPLES, SHELLS
from mrc.cli.main import main

START = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "-f", "-i"),
}
BEFORE = {"bash": "", "zsh": "autoload -U compinit && compinit -D; "}
HERE = [
    pytest.param(
        shell,
        marks=pytest.mark.skipif(shutil.which(shell) is None, reason=f"apt-get install {shell}"),
    )
    for shell in SHELLS
]


@pytest.mark.parametrize("shell", HERE)
def test_completion__of_a_typed_line(shell: str, tmp_path: Path) -> None:
    command = f'eval "$(mrc completion {shell})"'
    assert command in EXAMPLES
    (tmp_path / "big.bin").touch()
    program = f'mrc() {{ {shlex.quote(sys.executable)} -m mrc "$@"; }}; '
    with terminal() as term, term.running(*START[shell], PS1="> ", ZDOTDIR=str(tmp_path)):
        term.press(
            f"cd {tmp_path}; {program}{BEFORE[shell]}{command}; echo is ready | tr a-z A-Z\n"
        )
        term.until("IS READY")
        for typed, rest in (
            ("mrc se", "nd"),
            *([("mrc testbed he", "al")] if "testbed" in products.commands() else []),
            ("mrc recv --ove", "rwrite"),
            ("mrc send big.", "bin"),
        ):
            term.press(f"{typed}\t")
            term.until(rest)
            term.press("\x15")  # deletes the line


def test_completion__of_another_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 2
    assert "fish" in capsys.readouterr().err
