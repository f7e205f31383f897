# SPDX-License-Identifier: Apache-2.0
"""Missing programs are named with the packages that contain them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrc.errors import StateError
from mrc.linux import programs


@pytest.fixture(autouse=True)
def only_ip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with one program, in the folder for the system's programs."""
    program = tmp_path / "ip"
    program.touch(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(programs, "SYSTEM_FOLDERS", str(tmp_path))
    return program


def test_require__returns_paths(only_ip: Path) -> None:
    assert programs.require("ip") == [str(only_ip)]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("ip", "nft"), "nft is missing: apt-get install nftables"),
        (("tc", "ss"), "tc and ss are missing: apt-get install iproute2"),
    ],
)
def test_require__names_all_packages(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(StateError) as caught:
        programs.require(*names)
    assert str(caught.value) == message


def test_not_found__with_and_without_remedy() -> None:
    assert programs.not_found("ping") == "ping: command not found: apt-get install iputils-ping"
    assert programs.not_found("mine") == "mine: command not found"
