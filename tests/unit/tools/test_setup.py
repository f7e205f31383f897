# SPDX-License-Identifier: Apache-2.0
"""What tools/setup installs: the table of Debian packages, and the locked Python packages."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

import peers
import walls
from packaging.requirements import Requirement
from project_text import ROOT, sources, text

PROOF = r"(program|header|x86|python|file):\S+"
ROW = re.compile(rf"(build|part|bed|test|ci|bench) +(\S+) +({PROOF}) +\S.*")
PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15")


def rows() -> list[re.Match[str]]:
    table = (ROOT / "tools" / "packages").read_text().splitlines()
    found = [ROW.fullmatch(line) or line for line in table if not line.startswith("#")]
    assert [row for row in found if isinstance(row, str)] == []
    return [row for row in found if not isinstance(row, str)]


def packages(*kinds: str) -> set[str]:
    return {row[2] for row in rows() if row[1] in kinds}


@walls.needs("beds", "programs", "judge", "lab")
def test_packages__a_reason_to_skip_a_test_names_one() -> None:
    named = {
        package
        for path in sources()
        if path.parts[0] == "tests"
        for words in re.findall(r"reason=.*apt-get install ([\w+. -]+)", text(path))
        for package in words.split()
    }
    assert {"groff", "socat"} <= named
    assert named <= packages("part", "test", "ci")


def test_packages__benchmarks_name_the_same() -> None:
    assert set(peers.PACKAGES.values()) <= packages("test", "ci", "bench")


def required() -> Iterator[Requirement]:
    """Every requirement of pyproject.toml that set-up installs."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, extras = told["project"], told["project"]["optional-dependencies"]
    wanted = [*told["build-system"]["requires"], *project["dependencies"]]
    wanted += [each for name, its in extras.items() if name != "torch" for each in its]
    for requirement in map(Requirement, wanted):
        if requirement.name != project["name"]:
            yield requirement


def locked() -> dict[str, list[tuple[Requirement, int]]]:
    """Package -> its versions in the lock, each with the number of its hashes."""
    found: dict[str, list[tuple[Requirement, int]]] = {}
    entries = re.split(r"^(?=\w)", (ROOT / "tools/requirements.lock").read_text(), flags=re.M)
    for entry in entries[1:]:
        requirement = Requirement(entry.partition("\\")[0].strip())
        found.setdefault(requirement.name, []).append((requirement, entry.count("--hash=")))
    return found


def test_lock__satisfies_pyproject() -> None:
    """On failure: tools/lock --keep."""
    lock = locked()
    for requirement in required():
        for python in PYTHONS:
            here = {"python_version": python, "python_full_version": f"{python}.0"}
            versions = [
                next(iter(each.specifier)).version
                for each, _ in lock[requirement.name]
                if each.marker is None or each.marker.evaluate(here)
            ]
            assert len(versions) == 1, (requirement, python)
            assert requirement.specifier.contains(versions[0]), (requirement, versions)


def test_lock__pins_every_package_and_has_its_hashes() -> None:
    for each, hashes in (entry for entries in locked().values() for entry in entries):
        assert [one.operator for one in each.specifier] == ["=="] and hashes > 0, each
