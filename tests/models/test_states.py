# SPDX-License-Identifier: Apache-2.0
"""The tables of states in csrc/core/README.md match the engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from project_text import tool

TOOL = Path(__file__).parents[2] / "tools" / "states"


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tool as a module that edits a copy of the page."""
    module = tool("states")
    copy = tmp_path / "page.md"
    copy.write_text(module.PAGE.read_text())
    monkeypatch.setattr(module, "PAGE", copy)
    return module


def test_page__is_true() -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("true", "false"),
    [
        ("| RTS | - | - | - | - | yes |", "| RTS | yes | - | - | - | yes |"),
        ("| DENIED | - | - | - | GOOD |", "| DENIED | SKIP | - | - | GOOD |"),
    ],
)
def test_check__finds_a_cell_that_is_wrong(
    states: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    true: str,
    false: str,
) -> None:
    page = states.PAGE.read_text()
    assert page.count(true) == 1
    monkeypatch.setattr(
        states, "SETS", states.SETS[:3]
    )  # these show the same in a tenth of the time
    states.PAGE.write_text(page.replace(true, false))
    monkeypatch.setattr(sys, "argv", ["states", "--check"])
    assert states.main() == 1
    assert "is outdated: run tools/states" in capsys.readouterr().out
    assert false in states.PAGE.read_text()
    monkeypatch.setattr(sys, "argv", ["states"])
    assert states.main() == 0
    assert states.PAGE.read_text() == page


def test_tables__without_their_place_stop_the_tool(
    states: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["states"])
    states.PAGE.write_text("no markers")
    with pytest.raises(SystemExit, match="0 places have <!-- tools/states: qp -->, not 1"):
        states.main()


def test_tables__whose_end_is_not_marked_stop_the_tool(
    states: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["states"])
    cut = states.PAGE.read_text().replace("<!-- end -->", "")
    states.PAGE.write_text(cut)
    with pytest.raises(SystemExit, match="<!-- end --> is missing behind <!-- tools/states: qp"):
        states.main()
    assert states.PAGE.read_text() == cut
