# SPDX-License-Identifier: Apache-2.0
"""`tools/wheel`: manual pages and the systemd units."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import manuals
import pytest

from mrc import products
from mrc.cli.completion import parsers
from mrc.cli.main import build_parser

ROOT = Path(__file__).resolve().parents[3]
UNITS = {name: ROOT / "tools" / f"mrc-{name}.service" for name in ("recv", "agent")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("data")
    manuals.write(made)
    return made


def plain(page: str) -> str:
    return page.replace(r"\-", "-").replace(r"\e", "\\").replace(r"\&", "")


def test_pages__name_every_option_and_example(folder: Path) -> None:
    parser = build_parser()
    assert sorted(path.name for path in (folder / manuals.MAN).iterdir()) == sorted(
        ["mrc.1", *(f"mrc-{name}.1" for name in products.commands())]
    )
    for name, (its, summary) in manuals._choices(parser):
        page = plain((folder / manuals.MAN / f"mrc-{name}.1").read_text())
        assert f"mrc-{name} - {summary}\n" in page
        assert its.examples.partition("\n")[2].rstrip() in page
        shown = {
            option
            for each in parsers(its)
            for action in each._actions
            if action.help != "==SUPPRESS=="
            for option in action.option_strings
        }
        assert shown and {option for option in shown if option not in page} == set()


def test_page__sets_off_what_roff_would_act_on() -> None:
    assert manuals._text(".x\n'y\na\\b --c") == "\\&.x\n\\&'y\na\\eb \\-\\-c"


@pytest.mark.skipif(shutil.which("groff") is None, reason="apt-get install groff")
def test_pages__are_valid_roff(folder: Path) -> None:
    files = sorted((folder / manuals.MAN).iterdir())
    command: list[str | Path] = ["groff", "-man", "-ww", "-Tutf8", "-z", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize("name", UNITS)
def test_unit__options_are_accepted(name: str) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNITS[name])
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert program == "mrc" and words.pop() == f"$MRC_{name.upper()}_OPTIONS"
    args = build_parser([name]).parse_args(words)
    assert args.command == name and args.quiet
    assert vars(args).get("output", "${STATE_DIRECTORY}") == "${STATE_DIRECTORY}"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="apt-get install systemd")
@pytest.mark.parametrize("name", UNITS)
def test_unit__is_valid(name: str, tmp_path: Path) -> None:
    def verify(unit: Path) -> subprocess.CompletedProcess[str]:
        command: list[str | Path] = ["systemd-analyze", "verify", "--man=no", unit]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    least, copy = tmp_path / "least.service", tmp_path / UNITS[name].name
    least.write_text("[Service]\nExecStart=/bin/true\n")
    if (control := verify(least)).returncode:
        pytest.skip(f"systemd-analyze accepts no unit here: {control.stderr.strip()}")
    copy.write_text(UNITS[name].read_text().replace(f"=mrc {name}", f'="{sys.executable}" {name}'))
    done = verify(copy)
    assert (done.returncode, [line for line in done.stderr.splitlines() if copy.name in line]) == (
        0,
        [],
    )
