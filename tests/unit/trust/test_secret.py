# SPDX-License-Identifier: Apache-2.0
"""Files that decide about trust, and memory for secrets."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from mrc.errors import ConfigError
from mrc.trust.identity import KnownHosts, allowed, load
from mrc.trust.secret import Secret, read_secret, read_trusted
from mrc.trust.security import load_secret

READERS: dict[str, Callable[[Path], object]] = {
    "identity": load,
    "secret": load_secret,
    "allowed": lambda path: allowed([str(path)]),
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
        read_secret(path)


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
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: int,
    group: int,
    mode: int,
    is_read: bool,
) -> None:
    """User 23456 is in the group 23456 only."""
    path = tmp_path / "file"
    path.write_text("x")
    os.chown(path, owner, group)
    path.chmod(mode)
    for name, found in (("geteuid", 23456), ("getegid", 23456), ("getgroups", [23456])):
        monkeypatch.setattr(os, name, lambda found=found: found)
    if is_read:
        assert bytes(read_secret(path).bytes) == b"x"
    else:
        with pytest.raises(ConfigError, match="others may"):
            read_secret(path)


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
    assert bytes(read_secret(Path(f"/dev/fd/{out}")).bytes) == b"secret"
    os.close(out)
