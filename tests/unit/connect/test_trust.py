# SPDX-License-Identifier: Apache-2.0
"""Identities, proofs, secrets and what a Context requires of its peers."""

from __future__ import annotations

import os
import pickle
import random
import ssl
import stat
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from mrc.connect import proofs, tls
from mrc.connect.identity import AllowedPeers, KnownHosts, load, public_of
from mrc.connect.proofs import Binding, Guess
from mrc.connect.security import WAYS, Commands, Security, load_secret
from mrc.errors import ConfigError, ConnectError, ProtocolError
from mrc.linux.secret import Secret, read_trusted


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
    AllowedPeers(path).add(A, "10.0.0.1, 2026-01-01")
    path.write_text(path.read_text().rstrip())  # as an editor may leave it
    AllowedPeers(path).add(B, "10.0.0.2, 2026-01-01")
    assert AllowedPeers.named([str(path)]) == {A, B}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_allowed__of_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        AllowedPeers.named([str(tmp_path)])
    assert str(raised.value) == f"{tmp_path}: cannot be read: is a directory"


def test_known_hosts__behind_a_line_without_its_end(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"a {A}  # a comment")
    known = KnownHosts(path)
    known.add("b", B)
    assert (known.fingerprint("a"), known.fingerprint("b")) == (A, B)


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a home."""
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError))
    for name in ("HOME", "XDG_CONFIG_HOME", "MRC_IDENTITY"):
        monkeypatch.delenv(name, raising=False)


def test_folder__of_a_user_without_a_home(homeless: None) -> None:
    assert "HOME" not in os.environ
    with pytest.raises(ConfigError, match=r"no home folder for keys: set \$HOME"):
        AllowedPeers()


# ---- Proofs and one-time codes -------------------------------------------------------------------


WRONG = ConnectError("wrong")

POINTS = 100  # about half of them are not on the curve


@pytest.mark.parametrize("connects", [True, False])
def test_guess__any_message_gives_a_key_or_an_error_of_mrc(connects: bool) -> None:
    rng, wrong = random.Random(1), 0
    fixed = [b"", b"A", b"B", bytes(33), b"A" + bytes(32), b"B" + bytes(32), b"B" + b"\xff" * 32]
    for number in range(len(fixed) + POINTS):
        guess = Guess("maple-rocket-cider", connects=connects)
        side = b"B" if connects else b"A"
        message = fixed[number] if number < len(fixed) else side + rng.randbytes(32)
        try:
            assert len(guess.key(message)) == 32
        except ProtocolError:
            wrong += 1
    assert POINTS // 2 < wrong < POINTS + len(fixed)


def test_guess__our_own_message_is_no_answer() -> None:
    guess = Guess("maple-rocket-cider", connects=True)
    with pytest.raises(ProtocolError):
        guess.key(guess.message)


@pytest.mark.parametrize("field", ["server", "server_nonce", "client_nonce"])
def test_mac__is_for_one_connection(field: str) -> None:
    binding = {"server": b"s" * 32, "server_nonce": b"n" * 32, "client_nonce": b"c" * 32}
    right, wrong = Secret.copy(b"k" * 32), Secret.copy(b"o" * 32)
    shown = proofs.mac(right, "connects", Binding(**binding))
    proofs.check_mac(shown, right, "connects", Binding(**binding), WRONG)
    other = Binding(**{**binding, field: b"o" * 32})
    for key, who, where in (
        (right, "connects", other),
        (right, "listens", Binding(**binding)),  # his own proof comes back
        (wrong, "connects", Binding(**binding)),
    ):
        with pytest.raises(ConnectError, match="wrong"):
            proofs.check_mac(shown, key, who, where, WRONG)


# ---- Secrets in memory and in files --------------------------------------------------------------


READERS: dict[str, Callable[[Path], object]] = {
    "identity": load,
    "secret": load_secret,
    "allowed": lambda path: AllowedPeers.named([str(path)]),
    "known_hosts": lambda path: KnownHosts(path).fingerprint("h1"),
}


@pytest.fixture(params=READERS)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Callable[[Path], object]]:
    """A file that its reader takes."""
    path, read = tmp_path / request.param, READERS[request.param]
    if request.param == "identity":
        load(path)
    else:
        path.write_bytes(bytes(32) if request.param == "secret" else b"# nobody yet\n")
        path.chmod(0o600)
    read(path)
    return path, read


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_read__not_what_others_may_write(
    file: tuple[Path, Callable[[Path], object]], mode: int
) -> None:
    path, read = file
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"{path}: others may write it \(mode 0{mode:o}\):"):
        read(path)


def test_read__not_what_another_user_owns(
    file: tuple[Path, Callable[[Path], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = file
    if os.geteuid() == 0:
        os.chown(path, 1, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match=r"user \d+ owns it and can change it"):
        read(path)


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_read__secrets_are_for_their_owner(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    path.chmod(mode)
    assert read_trusted(path) == b"x"
    with pytest.raises(ConfigError, match=f"others may read it .*: chmod 600 {path}"):
        Secret.read(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(
    ("owner", "group", "mode", "is_read"),
    [
        (0, 23456, 0o440, True),
        (0, 23456, 0o460, False),
        (0, 23456, 0o444, False),
        (0, 1, 0o440, False),
        (23456, 23456, 0o440, False),
    ],
)
def test_read__a_secret_that_root_shares_with_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, group: int, mode: int,
    is_read: bool,
) -> None:  # fmt: skip
    """User 23456 is in the group 23456 only."""
    path = tmp_path / "file"
    path.write_text("x")
    os.chown(path, owner, group)
    path.chmod(mode)
    for name, found in (("geteuid", 23456), ("getegid", 23456), ("getgroups", [23456])):
        monkeypatch.setattr(os, name, lambda found=found: found)
    if is_read:
        assert bytes(Secret.read(path).bytes) == b"x"
    else:
        with pytest.raises(ConfigError, match="others may"):
            Secret.read(path)


# ---- Memory --------------------------------------------------------------------------------------


def test_take__leaves_zeros_behind() -> None:
    given = os.urandom(32)
    expected = bytes(bytearray(given))
    assert Secret.take(given).bytes == expected
    assert given == bytes(32)


@pytest.mark.parametrize("size", [0, 1, 32, 100_000])
def test_random__has_the_size(size: int) -> None:
    one, other = Secret.random(size), Secret.random(size)
    assert len(one) == len(other) == size
    assert size < 32 or one != other


def test_wipe__is_for_all_users() -> None:
    secret = Secret.copy(b"secret")
    view = secret.bytes
    secret.wipe()
    assert view == bytes(6)


def test_repr__tells_nothing() -> None:
    assert repr(Secret.copy(b"secret")) == "Secret(6 bytes)"


def test_pickle__makes_another_one() -> None:
    secret = Secret.copy(b"secret")
    assert pickle.loads(pickle.dumps(secret)) == secret


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_fork__gives_them_on() -> None:
    """A Security is made before a program forks its workers."""
    secret = Secret.copy(b"secret")
    child = os.fork()
    if child == 0:
        os._exit(bytes(secret.bytes) != b"secret")
    assert os.waitpid(child, 0)[1] == 0


def test_read_secret__from_a_pipe() -> None:
    """As a shell makes it: --secret <(command)."""
    out, into = os.pipe()
    os.write(into, b"secret")
    os.close(into)
    assert bytes(Secret.read(Path(f"/dev/fd/{out}")).bytes) == b"secret"
    os.close(out)


# ---- What a Context requires ---------------------------------------------------------------------


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


def test_load_identity__of_a_user_without_a_home(homeless: None) -> None:
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
