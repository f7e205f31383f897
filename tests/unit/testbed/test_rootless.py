# SPDX-License-Identifier: Apache-2.0
"""A command that starts again as root of a user namespace of its own."""

from __future__ import annotations

import os
import sys

import pytest

from mrc.errors import StateError
from mrc.linux import netns, programs
from mrc.testbed import rootless


def test_become_root__starts_the_same_command_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "execvp", lambda _, argv: started.append(argv))
    monkeypatch.setattr(sys, "argv", ["mrc", "demo", "--size", "1MiB"])
    rootless.become_root()
    (argv,) = started
    assert argv[:2] == [*programs.require("unshare"), "-Urnm"]
    assert argv[-7:] == [sys.executable, "-P", "-m", "mrc", "demo", "--size", "1MiB"]


def test_become_root__says_when_the_system_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(rootless, "is_allowed", lambda: False)
    with pytest.raises(StateError, match="forbids user namespaces"):
        rootless.become_root()


def test_become_root__root_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its uid is 0, but it may not make namespaces: it is served as an ordinary user is."""
    started: list[list[str]] = []
    monkeypatch.setattr(netns, "lacks", lambda: "CAP_SYS_ADMIN")
    monkeypatch.setattr(os, "execvp", lambda _, argv: started.append(argv))
    monkeypatch.setattr(rootless, "is_allowed", lambda: True)
    rootless.become_root()
    assert started[0][1] == "-Urnm"
    monkeypatch.setattr(rootless, "is_allowed", lambda: False)
    with pytest.raises(StateError, match="give this root CAP_SYS_ADMIN, or allow them: sysctl"):
        rootless.become_root()


def test_become_root__names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(programs, "SYSTEM_FOLDERS", "/nowhere")
    with pytest.raises(StateError, match=r"^unshare and sh and mount are missing: apt-get"):
        rootless.become_root()
