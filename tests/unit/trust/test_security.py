# SPDX-License-Identifier: Apache-2.0
"""What a Context requires, and what users can run when it is refused."""

from __future__ import annotations

import ssl
from itertools import combinations
from pathlib import Path
from typing import Any, NoReturn

import pytest

from mrc.connect import tls
from mrc.errors import ConfigError
from mrc.trust.identity import load, public_of
from mrc.trust.security import WAYS, Commands, Security

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


# ---- Remedies ------------------------------------------------------------------------------------


COMMANDS = Commands("mrc perf --server", "mrc perf h1")


@pytest.mark.parametrize("way", WAYS)
def test_no_such_way__names_a_command_for_each_set_of_ways(way: str) -> None:
    others = [each for each in WAYS if each != way]
    for count in range(len(others) + 1):
        for ways in combinations(others, count):
            text = COMMANDS.no_such_way("h1", way, ways)
            assert "h1" in text and ("mrc perf h1 --" in text or "--server --code" in text)
            assert len(text) < 300, "what a peer is told is cut there"
            assert "here" not in text.replace("other", "").split()


def test_no_such_way__whatever_a_peer_says() -> None:
    text = COMMANDS.no_such_way("h1", "key", [["code"], None, "code "])
    assert text.startswith("h1 lets no other host in")


def test_not_allowed__names_the_key() -> None:
    key = f"mrc:SHA256:{'A' * 43}"
    assert f"mrc perf --server --allow {key} lets it in" in COMMANDS.not_allowed(key)
    assert len(COMMANDS.not_allowed(key)) < 300
