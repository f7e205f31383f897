# SPDX-License-Identifier: Apache-2.0
"""Which key a Context shows."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, NoReturn

import pytest

from mrc.connect import tls
from mrc.errors import ConfigError
from mrc.trust.identity import load, public_of
from mrc.trust.security import Security

SECRET = b"s" * 32


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MRC_IDENTITY", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "mrc"


def test_load_identity__a_secret_alone_stores_none(config: Path) -> None:
    identity = Security(secret=SECRET).load_identity()
    assert public_of(identity.certificate) == identity.public
    assert isinstance(tls.server_context(identity, None).context(), ssl.SSLContext)
    assert not config.exists()


def test_load_identity__a_secret_with_a_key_that_is_there(config: Path) -> None:
    """So a host that is known by its key keeps it."""
    there = load(config / "identity.pem")
    assert Security(secret=SECRET).load_identity().fingerprint == there.fingerprint
    (config / "identity.pem").write_text("damaged")
    assert Security(secret=SECRET).load_identity().fingerprint != there.fingerprint


@pytest.mark.parametrize(
    "way", [{}, {"code": "maple-rocket-cider"}, {"allow_any": True}, {"allow": ("x",)}]
)
def test_load_identity__another_way_makes_one(config: Path, way: dict[str, Any]) -> None:
    Security(secret=SECRET if way else b"", **way).load_identity()
    assert (config / "identity.pem").exists()


def test_load_identity__of_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> NoReturn:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    for name in ("HOME", "XDG_CONFIG_HOME", "MRC_IDENTITY"):
        monkeypatch.delenv(name, raising=False)
    assert Security(secret=SECRET).load_identity().certificate
    with pytest.raises(ConfigError, match="no home folder"):
        Security().load_identity()
