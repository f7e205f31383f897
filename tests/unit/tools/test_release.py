# SPDX-License-Identifier: Apache-2.0
"""tools/release: what it finds missing; what is true of version and changelog at any time; manual
pages and systemd units of tools/wheel; API pages of tools/docs.
"""

from __future__ import annotations

import ast
import configparser
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from itertools import zip_longest
from pathlib import Path
from types import ModuleType

import manuals
import pytest
from project_text import ROOT, releases, tool

import mrc
from mrc import products
from mrc.cli.completion import parsers
from mrc.cli.main import build_parser

CHANGELOG = """\
# Changelog

## [Unreleased]

## [0.4.0] - 2026-12-01

### Added

- One.
- Two.

## [0.3.0] - 2026-11-26

- Three.
"""
RESULTS = "of 2026-11-23\n| a | 0.805 | at least 0.9 |\n"


TOOL = tool("release")


def git(root: Path, *words: str) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    environ = os.environ | {"GIT_COMMITTER_DATE": "2026-11-26T12:00Z"}
    subprocess.run(["git", "-C", root, *author, *words], check=True, env=environ)


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A checkout in which nothing is missing for 0.4.0."""
    for folder in ("bench", "tools", "mrc/perf"):
        (tmp_path / folder).mkdir(parents=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = "".join(f"{each} = []\n" for each in project["optional-dependencies"])
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nversion = "0.4.0"\ndependencies = ["cffi>=1.16"]\n'
        f'urls = {{ Homepage = "https://mrc" }}\n[project.optional-dependencies]\n{optional}'
    )
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    for page in TOOL.PAGES:
        (tmp_path / page).write_text("mrc reaches 0.81x the best TCP flow.\n")
    (tmp_path / "bench" / "results.md").write_text(RESULTS)
    (tmp_path / "tools" / "requirements.lock").write_text("cffi==2.0.0 ; x \\\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "Ready")
    git(tmp_path, "tag", "v0.4.0")
    return tmp_path


def missing(root: Path) -> list[str]:
    return [line.partition(":")[0] for line in TOOL.missing(root)]


def test_missing__nothing(ready: Path) -> None:
    assert missing(ready) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "found"),
    [
        ("pyproject.toml", "0.4.0", "0.4.0.dev0", ["version"]),
        ("pyproject.toml", "0.4.0", "0.5.0", ["changelog", "tag"]),
        ("pyproject.toml", "Homepage", "Paper", ["urls"]),
        ("pyproject.toml", "cffi>=1.16", "cffi>=2.1", ["lock"]),
        ("pyproject.toml", "cffi>=1.16", "uvloop", ["lock"]),
        ("CHANGELOG.md", " - 2026-12-01", "", ["changelog"]),
        ("CHANGELOG.md", "[Unreleased]\n", "[Unreleased]\n\n- Zero.\n", ["changelog"]),
        ("mrc/perf/README.md", "0.81x", "0.91x", ["numbers"]),
    ],
)
def test_missing__one_thing(ready: Path, name: str, old: str, new: str, found: list[str]) -> None:
    """What differs is not committed either."""
    file = ready / name
    file.write_text(file.read_text().replace(old, new))
    assert sorted(missing(ready)) == sorted([*found, "tree"])


def test_missing__the_tag_and_new_measurements(ready: Path) -> None:
    (ready / "csrc" / "io").mkdir(parents=True)
    (ready / "csrc" / "io" / "ctx.c").touch()
    git(ready, "add", ".")
    git(ready, "commit", "-qm", "Faster")
    assert missing(ready) == ["numbers", "tag"]


def test_main__prints_a_list_and_fails_if_something_is_missing(
    ready: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(TOOL.checkout, "ROOT", ready)
    monkeypatch.setattr("sys.argv", ["release"])
    assert TOOL.main() == 0
    (ready / "new").touch()
    assert TOOL.main() == 1
    assert capsys.readouterr().out == "tree: 1 files are not committed, such as new\n"


# ---- At any time -------------------------------------------------------------------------------


def test_changelog__is_that_of_the_version() -> None:
    """A release has its section; a version of development is that of a later release."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    found = releases((ROOT / "CHANGELOG.md").read_text())
    assert found[0].version == "", "the first section is [Unreleased]"
    newest = found[1].version if found[1:] else "0.0.0"
    if version.endswith(".dev0"):
        numbers = [tuple(map(int, each.split("."))) for each in (newest, version[:-5])]
        assert numbers[0] < numbers[1]
    else:
        assert version == newest


# ---- manual pages and units ----------------------------------------------------------------------

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


# ---- pages of the API ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pdoc", reason="tools/setup")
    folder = tmp_path_factory.mktemp("api")
    command: list[str | Path] = [sys.executable, ROOT / "tools" / "docs", "--output", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{folder}/index.html\n"
    return folder


@pytest.mark.more
def test_pages__show_every_public_name(pages: Path) -> None:
    shown = set(re.findall(r'<section id="(\w+)"', (pages / "mrc.html").read_text()))
    modules = {name for name in mrc.__all__ if isinstance(getattr(mrc, name), ModuleType)}
    assert set(mrc.__all__) - modules <= shown
    assert all((pages / "mrc" / f"{name}.html").exists() for name in modules)
    assert {"Context", "QP", "Listener"} <= set(
        re.findall(r'<section id="(\w+)"', (pages / "mrc" / "blocking.html").read_text())
    )


def test_public_names__have_docstrings() -> None:
    """Also the methods, properties and fields of classes."""
    found = []
    for name in mrc.__all__:
        value = getattr(mrc, name)
        if not (value.__doc__ or "").strip():
            found.append(name)
        for member, what in vars(value).items() if isinstance(value, type) else ():
            function = getattr(what, "fget", what)
            if member.startswith("_") or not callable(function):
                continue
            if not (getattr(function, "__doc__", None) or "").strip():
                found.append(f"{name}.{member}")
    assert found == []


@pytest.mark.parametrize("name", [n for n in mrc.__all__ if isinstance(getattr(mrc, n), type)])
def test_public_fields__have_docstrings(name: str) -> None:
    """Behind them."""
    (body,) = ast.parse(inspect.getsource(getattr(mrc, name))).body
    assert isinstance(body, ast.ClassDef)
    for field, behind in zip_longest(body.body, body.body[1:]):
        if isinstance(field, ast.AnnAssign):
            assert isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant), (
                ast.unparse(field.target)
            )
