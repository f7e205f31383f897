# SPDX-License-Identifier: Apache-2.0
"""The ports of rdma_cm."""

from __future__ import annotations

import errno
import random
from ipaddress import ip_address

import pytest

from mrc.agent import rdma_cm
from mrc.agent.rdma_cm import CmError, CmPorts

HERE, THERE = ip_address("10.0.0.1"), ip_address("10.0.1.1")


def ports() -> CmPorts:
    return CmPorts(random.Random(1))


def number(caught: pytest.ExceptionInfo[CmError]) -> int:
    return caught.value.number


def test_bind__a_taken_port() -> None:
    table = ports()
    first = table.bind(HERE, 7471)
    table.bind(THERE, 7471)  # another address
    for gid in (HERE, None):
        with pytest.raises(CmError) as caught:
            table.bind(gid, 7471)
        assert number(caught) == errno.EADDRINUSE
    table.free(first)
    table.bind(HERE, 7471)


def test_bind__shared_while_nobody_listens() -> None:
    table = ports()
    first = table.bind(None, 7471, shares=True)
    second = table.bind(None, 7471, shares=True)
    with pytest.raises(CmError):
        table.bind(None, 7471)
    with pytest.raises(CmError):
        table.listen(first, 1)
    table.free(second)
    table.listen(first, 1)
    with pytest.raises(CmError):
        table.bind(HERE, 7471, shares=True)


def test_bind__any_port_and_those_of_root(monkeypatch: pytest.MonkeyPatch) -> None:
    table = ports()
    monkeypatch.setattr(rdma_cm, "_EPHEMERAL", range(40000, 40003))
    assert {table.bind(None, 0).port for _ in range(3)} == {40000, 40001, 40002}
    with pytest.raises(CmError) as caught:
        table.bind(None, 0)
    assert number(caught) == errno.EADDRNOTAVAIL
    with pytest.raises(CmError) as caught:
        table.bind(None, 1023)
    assert number(caught) == errno.EACCES
    table.bind(None, 1023, root=True)


def test_bind__the_most_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_cm, "_MOST_BOUND", 2)
    table = ports()
    first = table.bind(None, 5000)
    table.bind(None, 5001)
    with pytest.raises(CmError) as caught:
        table.bind(None, 5002)
    assert number(caught) == errno.ENOMEM
    table.free(first)
    table.bind(None, 5002)


def test_listener__by_address() -> None:
    table = ports()
    bound = table.bind(HERE, 7471)
    assert table.listener(HERE, 7471) is None
    table.listen(bound, 4)
    assert table.listener(HERE, 7471) is bound
    assert table.listener(THERE, 7471) is None
    assert table.listener(HERE, 7472) is None
