# SPDX-License-Identifier: Apache-2.0
"""The actions of `mrc testbed`, by the names of their modules."""

from __future__ import annotations

from importlib import import_module

import pytest

from mrc import products
from mrc.cli.completion import parsers
from mrc.cli.main import build_parser, main
from mrc.testbed.cli.main import ACTIONS

OF_OTHERS = ("mrc.lab", "mrc.view", "mrc.workload")


def test_actions__without_the_packages_of_some(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    has = products.has
    monkeypatch.setattr(products, "has", lambda name: not name.startswith(OF_OTHERS) and has(name))
    programs = {each.prog for each in parsers(build_parser(["testbed"]))}
    assert {"mrc testbed up", "mrc testbed rsh"} < programs
    assert not programs & {"mrc testbed view", "mrc testbed import", "mrc testbed run"}
    assert main(["testbed", "import", "x.yaml"]) == 2
    assert "import" in capsys.readouterr().err


def test_actions__of_every_module_are_in_the_table() -> None:
    for each in parsers(build_parser(["testbed"])):
        words = each.prog.split()
        if len(words) == 3:
            module, _ = ACTIONS[words[2]]
            assert import_module(module).ACTIONS[words[2]] is each.get_default("act")
