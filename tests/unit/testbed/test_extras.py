# SPDX-License-Identifier: Apache-2.0
"""A test bed in a tree without the packages that add to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrc import products
from mrc.cli.main import main
from mrc.errors import ConfigError
from mrc.testbed import bed as beds
from mrc.testbed import state
from mrc.testbed.shape import Shape
from mrc.testbed.state import BedState


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    has = products.has
    monkeypatch.setattr(products, "has", lambda name: not name.startswith("mrc.lab") and has(name))
    monkeypatch.setenv("MRC_RUN_DIR", str(tmp_path))


def test_plan__has_no_options_of_extras(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["testbed", "plan", "--help"])
    shown = capsys.readouterr().out
    assert "--hosts" in shown and "--on" not in shown and "--uplink" not in shown
    assert main(["testbed", "plan", "--json"]) == 0


def test_bed__that_is_joined_to_the_world_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.toml"
    path.write_text('[topology]\nhosts = 2\nplanes = 1\nt1 = 1\n[outside]\nuplink = "eth0"\n')
    assert main(["testbed", "plan", str(path)]) == 1
    assert capsys.readouterr().err == (
        "mrc testbed plan: this test bed needs mrc.lab.outside, which is not installed\n"
    )


def test_bed__over_several_machines_is_only_taken_down() -> None:
    state.save("x", BedState(Shape(), up=True, machines={"every": []}))
    with pytest.raises(ConfigError, match=r"needs mrc\.lab\.machines, which is not installed"):
        beds.existing("x")
