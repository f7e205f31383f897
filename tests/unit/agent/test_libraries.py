# SPDX-License-Identifier: Apache-2.0
"""The libraries for C programs, as `mrc doctor` finds them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from processes import USER, needs_root, squatting
from verbs.building import LIBRARY

from mrc.agent import libraries
from mrc.agent import socket as agent_socket
from mrc.doctor import Finding, State


def found_of_verbs() -> Finding:
    (found,) = (each for each in libraries.examine() if each.name == "libmrc")
    return found


def test_verbs__is_one_of_the_findings() -> None:
    found = found_of_verbs()
    assert found.state is (State.OK if LIBRARY.exists() else State.LIMITED)
    assert re.search("agent runs|not built", found.found)


@pytest.mark.skipif(not LIBRARY.exists(), reason="libmrc is not built")
def test_verbs__names_the_agent_that_programs_would_find(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"@mrc-test-doctor-{os.getpid()}"
    monkeypatch.setenv(agent_socket.ENVIRONMENT, name)
    assert found_of_verbs().found == "device mrc0; no agent runs"
    with agent_socket.listen(name):
        assert found_of_verbs().found == "device mrc0; an agent runs"


@needs_root
@pytest.mark.skipif(not LIBRARY.exists(), reason="libmrc is not built")
def test_verbs__names_another_user_at_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"@mrc-test-doctor-{os.getpid()}"
    monkeypatch.setenv(agent_socket.ENVIRONMENT, name)
    with squatting(name) as pid:
        found = found_of_verbs()
    assert found.state is State.LIMITED
    assert found.found == f"socket {name}: process {pid} of user {USER} has taken it"
    assert found.remedy == "end that, or name another with MRC_AGENT"


@pytest.mark.parametrize("name", ["libmrc", "libmrc-cm", "libmrc-fi"])
def test_library__that_does_not_load(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "FOLDER", tmp_path)
    names = libraries.LIBMRC, libraries.LOADED_NAME, libraries.LIBMRC_CM, libraries.PROVIDER
    for each in names:
        (tmp_path / each).write_bytes(b"no library")
    findings = libraries._verbs(), libraries._rdma_cm(), libraries._mpi()
    (found,) = (each for each in findings if each.name == name)
    assert found.state is State.LIMITED and found.consequence
    assert found.found.startswith("does not load: ") and str(tmp_path) in found.found


def test_library__whose_build_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "FOLDER", tmp_path)
    assert libraries._mpi().remedy == "install libfabric-dev, then mrc again"
    (tmp_path / "libmrc-fi.so.error").write_text("info.c:7: error: no such field\n")
    found = libraries._mpi()
    assert found.state is State.LIMITED
    assert found.found == "not built: info.c:7: error: no such field"
    assert found.remedy == "install another version of libfabric-dev, then mrc again"
