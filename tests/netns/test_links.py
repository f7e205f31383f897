# SPDX-License-Identifier: Apache-2.0
"""Interfaces that come, go and come back while Contexts run on two plain hosts.

a  x1 ------ y1  b        each link a veth pair with addresses 10.0.N.1 and 10.0.N.2
   x2 ------ y2
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from netns.conftest import fresh_name
from netns.plain import address, ip, join, until_running
from netns.processes import Mrc

from mrc import netns

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

Start = Callable[..., Mrc]
A, B = f"mrc-{fresh_name()}", f"mrc-{fresh_name()}"


@pytest.fixture
def hosts() -> Iterator[None]:
    """Namespaces a and b without a link."""
    try:
        for name in (A, B):
            netns.create(name)
            ip(f"-n {name} link set lo up")
        yield
    finally:
        for name in (A, B):
            netns.remove(name)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts mrc in a namespace, and ends what is left."""
    running = []

    def start(namespace: str, *arguments: str | Path) -> Mrc:
        command = ["ip", "netns", "exec", namespace, sys.executable, "-m", "mrc"]
        pipe = subprocess.PIPE
        argv = [*command, *map(str, arguments)]
        running.append(Mrc(subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True)))
        return running[-1]

    yield start
    for each in running:
        each.end()


def link(n: int) -> None:
    """Makes link n, with its addresses."""
    join(A, f"x{n}", B, f"y{n}")
    address(A, f"x{n}", f"10.0.{n}.1/24")
    address(B, f"y{n}", f"10.0.{n}.2/24")
    until_running(A, f"x{n}")
    until_running(B, f"y{n}")


def said(mrc: Mrc, words: str) -> None:
    """Waits until it has said so."""
    while not any(words in line for line in mrc.lines):
        assert mrc.process.poll() is None, mrc.lines
        assert mrc.changed.wait(10), mrc.lines
        mrc.changed.clear()


def test_recv__started_before_its_links(hosts: None, start: Start, tmp_path: Path) -> None:
    (tmp_path / "inbox").mkdir()
    (tmp_path / "file").write_bytes(os.urandom(100_000))
    receiver = start(B, "recv", "--once", "--output", tmp_path / "inbox")
    said(receiver, "listening on TCP port 4791")
    said(receiver, "no usable interface yet")
    link(1)
    said(receiver, "in use now: y1 (10.0.1.2)")
    start(A, "send", tmp_path / "file", "10.0.1.2").ends(0)
    receiver.ends(0)
    assert (tmp_path / "inbox/file").read_bytes() == (tmp_path / "file").read_bytes()
    assert len(receiver.lines) == 3, "each said once"
