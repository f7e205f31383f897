# SPDX-License-Identifier: Apache-2.0
"""Keys of users, and files of fingerprints."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NoReturn

import pytest

from mrc.errors import ConfigError
from mrc.trust.identity import KnownHosts, allow, allowed, default_allowed, load, public_of


def test_public_of__a_certificate_that_is_damaged_anywhere(tmp_path: Path) -> None:
    """Whatever a peer shows: a key, or a ValueError. X.509 version 6 is one of these."""
    identity = load(tmp_path / "key.pem")
    good = identity.certificate
    assert public_of(good) == identity.public
    version = good.index(bytes.fromhex("a003020102")) + 4
    with pytest.raises(ValueError, match="version"):
        public_of(good[:version] + b"\5" + good[version + 1 :])
    for at in range(len(good)):
        for value in (0x00, 0x05, 0x80, 0xFF):
            try:
                assert len(public_of(good[:at] + bytes([value]) + good[at + 1 :])) == 32
            except ValueError:
                pass


# ---- Files of fingerprints -----------------------------------------------------------------------


A, B = (f"mrc:SHA256:{letter * 43}" for letter in "AB")


def test_allow__adds_a_line_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mrc" / "allowed"
    allow(path, A, "10.0.0.1, 2026-01-01")
    path.write_text(path.read_text().rstrip())  # as an editor may leave it
    allow(path, B, "10.0.0.2, 2026-01-01")
    assert allowed([str(path)]) == {A, B}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_allowed__of_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        allowed([str(tmp_path)])
    assert str(raised.value) == f"{tmp_path}: cannot be read: is a directory"


def test_known_hosts__behind_a_line_without_its_end(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"a {A}  # a comment")
    known = KnownHosts(path)
    known.add("b", B)
    assert (known.fingerprint("a"), known.fingerprint("b")) == (A, B)


def test_folder__of_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> NoReturn:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert "HOME" not in os.environ
    with pytest.raises(ConfigError, match=r"no home folder for keys: set \$HOME"):
        default_allowed()
