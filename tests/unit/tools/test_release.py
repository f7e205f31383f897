# SPDX-License-Identifier: Apache-2.0
"""tools/release: what it finds missing; and what is true of version and changelog at any time."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest
from project_text import ROOT, Release, releases, tool

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


def test_releases__of_a_changelog() -> None:
    assert releases(CHANGELOG) == [
        Release("", "", 0), Release("0.4.0", "2026-12-01", 2), Release("0.3.0", "2026-11-26", 1),
    ]  # fmt: skip


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
