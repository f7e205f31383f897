# SPDX-License-Identifier: Apache-2.0
"""The findings of `mrc doctor` and their display."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import pytest
from printed import printed
from squatter import USER, needs_root, squatting
from verbs.building import LIBRARY

from mrc.agent import door, libraries
from mrc.binding import native
from mrc.cli.doctor import line, summary
from mrc.cli.main import main
from mrc.doctor import host, kernel
from mrc.doctor.host import POINT_TO_POINT
from mrc.errors import StateError
from mrc.results.doctor import Finding, State
from mrc.testbed import rootless
from mrc.torch import fitness

OK = Finding(POINT_TO_POINT, State.OK, "a write over loopback")
SLOW = Finding("netem", State.LIMITED, "the kernel has no netem", "no delays", "--fabric emulated")
DEAD = Finding(POINT_TO_POINT, State.MISSING, "no route", "no data", "a kernel")


def test_line__says_what_is_found_what_follows_and_what_helps() -> None:
    assert line(OK) == "ok       point to point       a write over loopback"
    assert line(SLOW) == (
        "limited  netem                the kernel has no netem; no delays; remedy: "
        "--fabric emulated"
    )


def test_summary__counts() -> None:
    assert summary([OK, SLOW], can_run=True) == "1 ok, 1 limited: mrc can run here"
    assert summary([DEAD], can_run=False) == "1 missing: mrc CANNOT run here"


@pytest.mark.parametrize(("findings", "code"), [([OK, SLOW], 0), ([DEAD, SLOW], 1)])
def test_doctor__exits_by_whether_mrc_can_run(
    findings: list[Finding],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(host, "examine", lambda run: findings)
    torch = Finding("torch", State.LIMITED, "not installed", "no torch", "pip install torch")
    monkeypatch.setattr(fitness, "examine", lambda: torch)
    assert main(["doctor", "--json"]) == code
    told = printed("doctor", capsys.readouterr().out)
    assert told["can_run"] is (code == 0)
    assert told["findings"][1] == {
        "name": "netem", "state": "limited", "found": "the kernel has no netem",
        "consequence": "no delays", "remedy": "--fabric emulated",
    }  # fmt: skip
    assert told["findings"][-1]["name"] == "torch"


@pytest.mark.parametrize(
    ("library", "state", "remedy"),
    [
        ("IPsec-MB", State.OK, ""),
        ("libcrypto", State.LIMITED, "apt-get install libipsec-mb-dev"),
        (None, State.LIMITED, "apt-get install openssl; unset MRC_AEAD=libcrypto"),
    ],
)
def test_sealing__names_the_library(
    library: str | None, state: State, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library is None:
        monkeypatch.setenv("MRC_AEAD", "libcrypto")
    monkeypatch.setattr(native, "aead_name", lambda: library)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    found = host._sealing()
    assert found.state is state and found.remedy.startswith(remedy)
    assert bool(found.consequence) == (state is not State.OK)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")  # has no IPsec-MB
    assert (host._sealing().state is State.OK) == (library is not None)


def test_sealing__is_one_of_the_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rootless, "is_allowed", lambda: True)
    monkeypatch.setattr(kernel, "examine", dict)
    found = {each.name: each for each in host.examine()}["sealed packets"]
    assert found.found == native.aead_name()


def test_examine__what_is_not_good_comes_with_consequence_and_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Covers everything that may fail here: each verdict is inverted once."""

    def refused() -> dict[str, str | None]:
        raise StateError("unshare: not here")

    monkeypatch.setattr(rootless, "is_allowed", lambda: True)
    monkeypatch.setattr(kernel, "examine", refused)
    found = {each.name: each for each in host.examine()}
    assert found[POINT_TO_POINT].state is State.OK
    assert found["network namespaces"].found == "unshare: not here"
    everything: dict[str, str | None] = dict.fromkeys(host._NEEDS, "refused")
    monkeypatch.setattr(kernel, "examine", lambda: everything)
    found = {each.name: each for each in host.examine()}
    for name in everything:
        assert found[name].state is not State.OK
        assert found[name].consequence and found[name].remedy


def found_of_verbs() -> Finding:
    (found,) = (each for each in host.examine() if each.name == "libmrc")
    return found


def test_verbs__is_one_of_the_findings() -> None:
    found = found_of_verbs()
    assert found.state is (State.OK if LIBRARY.exists() else State.LIMITED)
    assert re.search("agent runs|not built", found.found)


@pytest.mark.skipif(not LIBRARY.exists(), reason="libmrc is not built")
def test_verbs__names_the_agent_that_programs_would_find(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"@mrc-test-doctor-{os.getpid()}"
    monkeypatch.setenv(door.ENVIRONMENT, name)
    assert found_of_verbs().found == "device mrc0; no agent runs"
    with door.listen(name):
        assert found_of_verbs().found == "device mrc0; an agent runs"


@needs_root
@pytest.mark.skipif(not LIBRARY.exists(), reason="libmrc is not built")
def test_verbs__names_another_user_at_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"@mrc-test-doctor-{os.getpid()}"
    monkeypatch.setenv(door.ENVIRONMENT, name)
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
    findings = host._verbs(), host._rdma_cm(), host._mpi()
    (found,) = (each for each in findings if each.name == name)
    assert found.state is State.LIMITED and found.consequence
    assert found.found.startswith("does not load: ") and str(tmp_path) in found.found


def test_library__whose_build_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "FOLDER", tmp_path)
    assert host._mpi().remedy == "install libfabric-dev, then mrc again"
    (tmp_path / "libmrc-fi.so.error").write_text("info.c:7: error: no such field\n")
    found = host._mpi()
    assert found.state is State.LIMITED
    assert found.found == "not built: info.c:7: error: no such field"
    assert found.remedy == "install another version of libfabric-dev, then mrc again"
