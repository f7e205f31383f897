# SPDX-License-Identifier: Apache-2.0
"""Named namespaces, checked with ip(8)."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mrc.errors import NetlinkError
from mrc.linux import netns

from .conftest import fresh_name

pytestmark = pytest.mark.default

STAY, KEPT, GONE, STUMP = (f"mrc-{fresh_name()}" for _ in range(4))


def identity() -> str:
    return os.readlink("/proc/thread-self/ns/net")


def test_create__as_ip_would(namespace_pair: tuple[str, str]) -> None:
    listed = subprocess.run(["ip", "netns"], check=True, capture_output=True, text=True).stdout
    assert set(namespace_pair) <= {line.split()[0] for line in listed.splitlines()}
    assert set(namespace_pair) <= set(netns.names())


def test_create__leaves_the_caller_where_it_was() -> None:
    before = identity()
    netns.create(STAY)
    try:
        assert identity() == before
    finally:
        netns.remove(STAY)


def test_create__refuses_a_taken_name(namespace_pair: tuple[str, str]) -> None:
    with pytest.raises(NetlinkError, match=f"{namespace_pair[0]} exists already"):
        netns.create(namespace_pair[0])
    assert namespace_pair[0] in netns.names()


def test_keep__names_the_namespace_of_the_caller(namespace_pair: tuple[str, str]) -> None:
    """Once: from another namespace, the name stays what it is."""
    try:
        for each in namespace_pair:
            with netns.inside(each):
                netns.keep(KEPT)
        with netns.inside(namespace_pair[0]):
            expected = identity()
        with netns.inside(KEPT):
            assert identity() == expected
    finally:
        netns.remove(KEPT)


def test_remove__takes_the_name_away_and_may_be_repeated() -> None:
    netns.create(GONE)
    netns.remove(GONE)
    netns.remove(GONE)
    assert GONE not in netns.names()


def test_remove__clears_a_name_that_never_became_a_namespace() -> None:
    """The state after a crash between the two steps of create."""
    (netns.FOLDER / STUMP).touch()
    netns.remove(STUMP)
    assert STUMP not in netns.names()


def test_inside__moves_one_thread_and_its_children(namespace_pair: tuple[str, str]) -> None:
    before = identity()
    with ThreadPoolExecutor(1) as other:
        assert other.submit(identity).result() == before
        with netns.inside(namespace_pair[0]):
            within = identity()
            assert other.submit(identity).result() == before
            command = ["readlink", "/proc/self/ns/net"]
            child = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert within != before
    assert child.strip() == within
    assert identity() == before


def test_inside__comes_back_after_an_error(namespace_pair: tuple[str, str]) -> None:
    before = identity()
    with pytest.raises(RuntimeError), netns.inside(namespace_pair[0]):
        raise RuntimeError
    assert identity() == before


def test_inside__sees_the_sysctls_of_the_namespace(namespace_pair: tuple[str, str]) -> None:
    key = Path("/proc/sys/net/ipv6/conf/default/seg6_enabled")
    before = key.read_text()
    with netns.inside(namespace_pair[0]):
        key.write_text("1")
        assert key.read_text() == "1\n"
    assert key.read_text() == before


def test_inside__names_what_is_missing() -> None:
    missing = pytest.raises(NetlinkError, match="no namespace mrc-test-nowhere")
    with missing, netns.inside("mrc-test-nowhere"):
        pass
