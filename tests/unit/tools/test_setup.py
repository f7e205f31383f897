# SPDX-License-Identifier: Apache-2.0
"""What tools/setup installs, the table of Debian packages and the locked Python packages; and what
programs of tests find around them: no terminal, and no file of the user.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import peers
import pytest
import walls
from packaging.requirements import Requirement
from processes import terminal
from project_text import ROOT, sources, text
from slowness import PATIENCE

from mrc.testbed import rootless

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


LOCK = (ROOT / "tools" / "requirements.lock").read_text()


def test_lock__satisfies_pyproject() -> None:
    """On failure: tools/lock --keep. pip requires that all of it is pinned and has hashes."""
    lock: dict[str, list[Requirement]] = {}
    for entry in map(Requirement, re.findall(r"^(\w.*) \\$", LOCK, re.MULTILINE)):
        lock.setdefault(entry.name, []).append(entry)
    for requirement in required():
        for python in PYTHONS:
            here = {"python_version": python, "python_full_version": f"{python}.0"}
            versions = [
                next(iter(each.specifier)).version
                for each in lock[requirement.name]
                if each.marker is None or each.marker.evaluate(here)
            ]
            assert len(versions) == 1, (requirement, python)
            assert requirement.specifier.contains(versions[0]), (requirement, versions)


def test_lock__names_the_extras_that_packages_require_of_each_other() -> None:
    pinned = re.findall(r"^([\w.-]+)(?:\[([\w,-]+)\])?==", LOCK, re.MULTILINE)
    extras = {name.lower(): set(filter(None, some.split(","))) for name, some in pinned}
    assert len(extras) > 20
    missing = [
        f"{found.name} requires {wanted}"
        for found in distributions()
        if found.name.lower() in extras
        for wanted in map(Requirement, found.requires or [])
        if wanted.name.lower() in extras and not wanted.extras <= extras[wanted.name.lower()]
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""})
    ]
    assert not missing


# ---- surroundings --------------------------------------------------------------------------------

LOOK = """
import os
try:
    print("terminal:", os.ttyname(os.open("/dev/tty", os.O_RDWR)))
except OSError:
    print("no terminal")
print(os.readlink("/proc/self/fd/0"))
"""


def test_program__has_no_terminal() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["no terminal", "/dev/null"]


def test_program__has_folders_of_its_own() -> None:
    home = pwd.getpwuid(os.geteuid()).pw_dir
    folders = [os.environ[name] for name in ("HOME", "TMPDIR", "XDG_RUNTIME_DIR")]
    assert len({*folders, home, "/tmp"}) == 5


def test_enter__joins_nothing_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    before = os.readlink("/proc/self/ns/user")
    assert rootless.enter(create=True)
    assert os.readlink("/proc/self/ns/user") == before


SHELL = ("sh", "-c", 'trap : INT; "$@"; exit $?', "sh")


@pytest.mark.parametrize("shell", [(), SHELL], ids=["leader", "job"])
def test_leave_terminal__interrupts_still_come(shell: tuple[str, ...], tmp_path: Path) -> None:
    """Pytest in a terminal, also as the first process there, which leads the session."""
    (tmp_path / "test_it.py").write_text(
        f"import subprocess, sys, time\n"
        f"def test_it():\n"
        f"    subprocess.run([sys.executable, '-c', {LOOK!r}])\n"
        f"    while True:\n"  # a pause could begin just after the signal, and miss it
        f"        time.sleep(0.01)\n"
    )
    words = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "conftest",
             "-p", "no:cacheprovider", "-n", "0", "-s", tmp_path / "test_it.py"]  # fmt: skip
    folders = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    with terminal() as term, term.running(*shell, *words, PYTHONPATH=folders) as process:
        term.until("no terminal")
        term.press("\x03")
        term.until("KeyboardInterrupt")
        assert process.wait(PATIENCE) == 2
