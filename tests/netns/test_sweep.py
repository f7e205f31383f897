# SPDX-License-Identifier: Apache-2.0
"""The example that measures over test beds: mrc/lab/examples/sweep.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrc.lab.examples import sweep


async def test_sweep__a_line_for_each_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(sweep, "SIZES", (1 << 10, 1 << 16))
    monkeypatch.setattr(sweep, "MTUS", (1500,))
    monkeypatch.setattr(sweep, "LOSSES", (0.0, 0.05))
    await sweep.main(0.1, str(tmp_path / "sweep.svg"))
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(":")[0] for line in lines] == [
        f"MTU 1500, loss {loss}, {size:8} B" for loss in ("  0%", "  5%") for size in (1024, 65536)
    ]
    assert all(float(line.split()[-2]) > 0 for line in lines)
    assert (tmp_path / "sweep.svg").read_text().count("MTU 1500") == 2
