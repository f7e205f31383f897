# SPDX-License-Identifier: Apache-2.0
"""Memory for secrets."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from mrc.trust.secret import Secret, read_secret


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
