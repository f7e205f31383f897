# SPDX-License-Identifier: Apache-2.0
"""The actions of `mrc testbed`: the modules that they load, and how they end."""

from __future__ import annotations

import os
import signal
from importlib import import_module
from pathlib import Path

import pytest
from loading import loaded

from mrc import products
from mrc.cli.completion import parsers
from mrc.cli.main import build_parser, main
from mrc.testbed import rootless
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


def test_testbed__loads_only_the_action_that_is_asked_for() -> None:
    modules = loaded("from mrc.cli.main import main\nmain(['testbed', 'plan'])")
    others = {module for module, _ in ACTIONS.values()} - {"mrc.testbed.cli.plan"}
    assert "mrc.testbed.cli.plan" in modules and not others & modules
    assert not {"mrc.linux.netlink", "mrc.testbed.bed", "mrc.lab.machines"} & modules


def test_testbed__needs_only_messages_of_pyroute2() -> None:
    modules = loaded("import mrc.testbed.bed")
    assert "pyroute2.netlink.rtnl.tcmsg" in modules
    assert not {"pyroute2.ndb", "pyroute2.iproute", "pyroute2.ethtool"} & modules


def test_testbed__a_signal_at_the_end_leaves_no_keeper(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left: list[bool] = []

    def leave(in_use: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        left.append(True)

    monkeypatch.setattr(rootless, "leave", leave)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # uvloop has left its own
    assert main(["testbed", "status", "--name", "never-built", "--quiet"]) == 130
    assert left == [True]
    assert capsys.readouterr().err == "mrc testbed status: interrupted\n"


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "FILE"),
        ("plan", "no-such-topology"),
        ("up", "--name", "never-built", "FILE"),
    ],
)
@pytest.mark.parametrize("name", ["wrong.toml", "missing.toml"])
def test_actions__a_bad_file_is_wrong_use(
    words: tuple[str, ...], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.toml").write_text("hosts = \n")
    argv = [str(tmp_path / name) if word == "FILE" else word for word in words]
    assert main(["testbed", *argv]) == 2
    error = capsys.readouterr().err
    assert (argv[-1] in error, error.count("\n")) == (True, 1)
    assert "Errno" not in error


def test_actions__an_unknown_option_names_the_help_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["testbed", "up", "--bogus"]) == 2
    where = "mrc testbed up"
    assert (
        f"{where}: unrecognized arguments: --bogus; see {where} --help" in capsys.readouterr().err
    )


def test_help__begins_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["testbed", "--help"])
    assert capsys.readouterr().out.startswith("examples:\n  mrc testbed")
