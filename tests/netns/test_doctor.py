# SPDX-License-Identifier: Apache-2.0
"""`mrc doctor` on this machine, which supports test beds, since these tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrc import doctor
from mrc.doctor import State
from mrc.errors import StateError
from mrc.linux import netns, system
from mrc.testbed import findings

from .conftest import HAS_USERS


@pytest.mark.default
def test_doctor__finds_what_these_tests_use() -> None:
    found = {each.name: each.state for each in [*doctor.examine_host(), *findings.examine()]}
    real = ("point to point",) if HAS_USERS else ()  # the SRv6 source address needs real root
    for name in (*real, "veth", "seg6", "uSIDs", "packet ring", "tbf", "nftables"):
        assert found[name] is State.OK, found
    assert {findings.NEAR, findings.FAR}.isdisjoint(netns.names())


def test_probe__tries_everything_that_doctor_explains() -> None:
    assert set(findings.kernel()) == set(findings._NEEDS)


def test_doctor__says_the_same_with_an_empty_path(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = {each.name: each.state for each in findings.examine()}
    monkeypatch.setenv("PATH", "")
    assert {each.name: each.state for each in findings.examine()} == usual


@pytest.mark.parametrize("name", findings.PROGRAMS)
def test_doctor__without_a_program_names_its_package(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in system.PACKAGES.keys() - {name}:
        if (path := system.find(each)) is not None:
            (tmp_path / each).symlink_to(path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(system, "SYSTEM_FOLDERS", str(tmp_path))
    found = findings.examine()
    assert [each for each in found if "No such file" in each.found] == []
    (row,) = (each for each in found if each.name == f"program {name}")
    assert (row.state, row.remedy) == (State.MISSING, f"apt-get install {system.PACKAGES[name]}")


def test_add_esp__without_ip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(system, "SYSTEM_FOLDERS", "/nowhere")
    with pytest.raises(StateError, match="ip is missing: apt-get install iproute2"):
        findings._add_esp("mrc-none")
