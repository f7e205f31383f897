# SPDX-License-Identifier: Apache-2.0
"""The row of `mrc doctor` about torch."""

from __future__ import annotations

from importlib.machinery import ModuleSpec

import pytest

from mrc.results.doctor import State
from mrc.torch import build
from mrc.torch.build import TorchError


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """torch 2.14.0, which fits, and a compiler."""
    spec = ModuleSpec("torch", None, origin="/packages/torch/__init__.py")
    monkeypatch.setattr(build, "find_spec", lambda name: spec)
    monkeypatch.setattr(build, "version", lambda name: "2.14.0")
    monkeypatch.setattr(build, "check_library", lambda version, library: None)
    monkeypatch.setattr(build, "compiler", lambda: "g++")
    return monkeypatch


def test_examine__fits(installed: pytest.MonkeyPatch) -> None:
    seen = []
    installed.setattr(build, "check_library", lambda version, library: seen.append(str(library)))
    (found,) = build.examine()
    assert (found.state, found.consequence, found.remedy) == (State.OK, "", "")
    assert found.found == "torch 2.14.0; GLOO_DEVICE_TRANSPORT=MRC selects mrc"
    assert seen == ["/packages/torch/lib/libtorch_cpu.so"]


def test_examine__not_installed(installed: pytest.MonkeyPatch) -> None:
    installed.setattr(build, "find_spec", lambda name: None)
    (found,) = build.examine()
    assert (found.state, found.found) == (State.LIMITED, "not installed")
    assert found.consequence == "no torch.distributed over mrc"
    assert found.remedy == "pip install 'mrc-transport[torch]'"


def test_examine__another_version(installed: pytest.MonkeyPatch) -> None:
    installed.setattr(build, "version", lambda name: "2.2.0")
    (found,) = build.examine()
    assert found.state is State.LIMITED
    assert found.found == "torch 2.2.0: the mrc transport supports torch 2.13 to 2.15"
    assert found.remedy == "install torch 2.13 to 2.15"


def test_examine__another_binary_interface(installed: pytest.MonkeyPatch) -> None:
    def refuse(version: str, library: object) -> None:
        raise TorchError(f"torch {version}: its Gloo has no Pair; unset a variable")

    installed.setattr(build, "check_library", refuse)
    (found,) = build.examine()
    assert (found.state, found.found) == (State.LIMITED, "torch 2.14.0: its Gloo has no Pair")


def test_examine__no_compiler(installed: pytest.MonkeyPatch) -> None:
    installed.setattr(build, "compiler", lambda: None)
    (found,) = build.examine()
    assert (found.state, found.remedy) == (State.LIMITED, "apt-get install g++")
