# SPDX-License-Identifier: Apache-2.0
"""NAT and firewalls between two hosts: what does not work, and what the user is told.

a 10.1.0.2 --- 10.1.0.1 r 10.2.0.1 --- 10.2.0.2 b       r forwards, and has the rules of the test
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from netns.conftest import fresh_name
from netns.plain import address, ip, join, until_running
from netns.processes import Mrc, Start

from mrc.linux import netns

NAT = "table ip t { chain c { type nat hook %s priority %d; %s; }; }"
FILTER = "table ip f { chain c { type filter hook forward priority 0; %s drop; }; }"
CASES = {
    "masquerade": ("10.2.0.2", NAT % ("postrouting", 100, 'oifname "r2" masquerade')),
    "forwarded port": (
        "10.1.0.1",
        NAT % ("prerouting", -100, "ip daddr 10.1.0.1 dnat to 10.2.0.2")
        + "\n"
        + FILTER % 'oifname "r2" ct status & dnat == 0',  # the address itself leads nowhere
    ),
    "firewall": ("10.2.0.2", FILTER % 'oifname "r1" ct state != established'),
    "no UDP": ("10.2.0.2", FILTER % "meta l4proto udp"),
}
QUICK = ("masquerade",)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts programs in the namespaces a, r and b."""
    if shutil.which("nft") is None:
        pytest.skip("nft is missing")
    names = {each: f"mrc-{fresh_name()}" for each in "arb"}
    running: list[Mrc] = []

    def begin(host: str, *command: str | Path) -> Mrc:
        argv = ["ip", "netns", "exec", names[host], *map(str, command)]
        pipe = subprocess.PIPE
        running.append(Mrc(subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True)))
        return running[-1]

    try:
        for each in names.values():
            netns.create(each)
            ip(f"-n {each} link set lo up")
        for host, ours, theirs, net in (("a", "a1", "r1", 1), ("b", "b1", "r2", 2)):
            join(names[host], ours, names["r"], theirs)
            address(names[host], ours, f"10.{net}.0.2/24")
            address(names["r"], theirs, f"10.{net}.0.1/24")
            until_running(names[host], ours)
            until_running(names["r"], theirs)
            ip(f"-n {names[host]} route add default via 10.{net}.0.1")
        begin("r", "sysctl", "-qw", "net.ipv4.ip_forward=1").ends(0)
        yield begin
    finally:
        for program in running:
            program.end()
        for each in names.values():
            netns.remove(each)


def mrc(start: Start, host: str, *arguments: str | Path) -> Mrc:
    return start(host, sys.executable, "-m", "mrc", *arguments)


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        pytest.param(*rules, id=case, marks=[] if case in QUICK else [pytest.mark.slow])
        for case, rules in CASES.items()
    ],
)
def test_send__names_both_ports(start: Start, name: str, rules: str, tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"hello")
    receiver = mrc(start, "b", "recv", "--output", tmp_path / "inbox", "--insecure")
    receiver.until_listening()
    start("r", "nft", rules).ends(0)
    commands = (("send", file, name), ("paths", name))
    for failed in [mrc(start, "a", *command, "--insecure") for command in commands]:
        failed.ends(4)
        text = failed.complaint()
        assert "(10.2.0.2) answers on UDP port 4791: is UDP blocked?" in text
        assert f"TCP port 4791 of {name} answers: open both ports in the firewalls" in text
        assert "NAT (a masquerade) between them requires a VPN" in text
    receiver.until_says("(10.1.0.2) answers on UDP port 4791: is UDP blocked?")
    start("r", "nft", "flush", "ruleset").ends(0)
    mrc(start, "a", "send", file, "10.2.0.2", "--insecure").ends(0)
    assert (tmp_path / "inbox" / "a").read_bytes() == b"hello"
