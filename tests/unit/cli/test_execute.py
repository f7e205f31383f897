# SPDX-License-Identifier: Apache-2.0
"""Programs that a command runs: the exit codes of env(1), and one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mrc.cli.runner import become, refusal


def test_refusal__a_program_that_is_there() -> None:
    assert refusal("sh") is None and refusal("/bin/sh") is None


@pytest.mark.parametrize("by_path", [True, False])
def test_refusal__not_executable(tmp_path: Path, by_path: bool) -> None:
    script = tmp_path / "script"
    script.touch(mode=0o644)
    found = refusal(str(script)) if by_path else refusal("script", str(tmp_path))
    assert found == (126, f"{script}: is not executable: chmod +x {script}")


def test_refusal__a_folder_or_nothing(tmp_path: Path) -> None:
    assert refusal(str(tmp_path)) == (126, f"{tmp_path}: is a folder")
    assert refusal("mrc-nothing") == (127, "mrc-nothing: command not found")
    assert refusal(tmp_path.name, str(tmp_path.parent)) == (
        127,
        f"{tmp_path.name}: command not found",
    )


@pytest.mark.parametrize(("text", "code"), [("no program", 126), ("#!/mrc/nothing\n", 127)])
def test_become__the_kernel_refuses_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int
) -> None:
    script = tmp_path / "script"
    script.write_text(text)
    script.chmod(0o755)
    assert become("mrc run", [str(script)], dict(os.environ)) == code
    assert capsys.readouterr().err.startswith(f"mrc run: {script}: ")
