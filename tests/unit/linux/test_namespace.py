# SPDX-License-Identifier: Apache-2.0
"""Sockets that another process opens. Here it is in the namespace of the tests."""

from __future__ import annotations

import errno
import os
import pickle
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from slowness import PATIENCE

import mrc
from mrc.connect.dial import open_connection, resolve
from mrc.linux.namespace import OWN, NetworkNamespace
from mrc.linux.rtnetlink import Interface

LOCAL = "127.0.0.1"
Started = tuple[NetworkNamespace, "subprocess.Popen[bytes]"]


@pytest.fixture
def started() -> Iterator[Started]:
    own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with own, its:
        process = subprocess.Popen(NetworkNamespace.program(), stdin=its.fileno())
        its.close()
        yield NetworkNamespace(own), process
    assert process.wait(PATIENCE) in (0, -9)  # it ends with its channel


def test_socket__several_threads_ask_at_once(started: Started) -> None:
    def domain_of(family: int) -> int:
        with started[0].socket(family, socket.SOCK_DGRAM) as made:
            assert not made.get_inheritable()
            return made.family

    wanted = [socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK] * 20
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(domain_of, wanted)) == wanted


def test_socket__what_the_kernel_refuses(started: Started) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.EAFNOSUPPORT)):
        started[0].socket(12345, socket.SOCK_STREAM)


def test_socket__of_a_process_that_has_ended(started: Started) -> None:
    namespace, process = started
    process.kill()
    process.wait()
    with pytest.raises(ConnectionError):
        namespace.socket(socket.AF_INET, socket.SOCK_STREAM)


def test_addresses__of_a_name(started: Started) -> None:
    for namespace in (OWN, started[0]):
        assert namespace.addresses("::1") == ["::1"]
        assert namespace.addresses(LOCAL) == [LOCAL]
        with pytest.raises(socket.gaierror):
            namespace.addresses("localhost", socket.AI_NUMERICHOST)
        with pytest.raises(UnicodeError):
            namespace.addresses("a" * 64)


async def test_resolve__in_the_namespace(started: Started) -> None:
    for namespace in (OWN, started[0]):
        assert await resolve(namespace, LOCAL, 0) == [LOCAL]


async def test_open_connection__closes_the_socket_of_a_failure(started: Started) -> None:
    with socket.socket() as unused:
        unused.bind((LOCAL, 0))
        with pytest.raises(ConnectionRefusedError):
            await open_connection(started[0], LOCAL, unused.getsockname()[1])
    with socket.create_server((LOCAL, 0)) as listening:
        port = listening.getsockname()[1]
        _, writer = await open_connection(started[0], LOCAL, port, ("127.0.0.2", 0))
        assert writer.get_extra_info("sockname")[0] == "127.0.0.2"
        writer.close()
        await writer.wait_closed()


def test_interfaces__are_those_of_the_namespace(started: Started) -> None:
    assert [each.name for each in Interface.all(started[0])] == [
        each.name for each in Interface.all()
    ]


def test_namespace__the_usual_one_is_a_value() -> None:
    config = mrc.ContextConfig()
    assert pickle.loads(pickle.dumps(config)) == config
    assert config.namespace.fd == 0
