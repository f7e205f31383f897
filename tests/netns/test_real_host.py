# SPDX-License-Identifier: Apache-2.0
"""A real host of a test bed. Namespaces stand for a machine with three interfaces, and for a
virtual machine at their other ends:

 h0 --- the fabric --- machine tap0 tap1 tap2 --- ens0 ens1 ens2 vm
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import walls
from netns.conftest import fresh_name
from netns.plain import ip, join
from netns.processes import Mrc
from printed import printed
from slowness import until

from mrc.cli.main import main
from mrc.linux import netns
from mrc.linux.interfaces import interfaces
from mrc.testbed.bed import Testbed
from mrc.testbed.shape import Fabric

MRC = [sys.executable, "-m", "mrc"]


class Site:
    """The machine, its virtual machine, and a test bed of which the latter is h1."""

    def __init__(self, fabric: Fabric, *, management: bool) -> None:
        self.name = fresh_name()
        self.machine, self.vm = (f"mrc-{self.name}.{each}" for each in ("machine", "vm"))
        self.running: list[Mrc] = []
        taps = "tap1,tap2,mgmt:tap0" if management else "tap1,tap2"
        self.up = ["up", "--planes", "2", "--t1", "1", "--rate", "200mbit", "--fabric", fabric]
        self.up += ["--name", self.name, "--real-host", f"h1={taps}"]
        self.own = ["--interfaces", "ens1,ens2"]
        self.own += ["--management", "ens0"] if management else []

    def prepare(self) -> None:
        for each in (self.machine, self.vm):
            netns.create(each)
            ip(f"-n {each} link set lo up")
        for number in range(3):
            join(self.machine, f"tap{number}", self.vm, f"ens{number}", mtu=9000)

    def run(self, *words: str) -> int:
        with netns.inside(self.machine):
            return main(["testbed", *words])

    def configure(self, folder: Path, script: str) -> dict[str, str]:
        """Runs the script in the virtual machine; returns the environment of its programs."""
        script = script.replace("/run/mrc-", f"{folder}/mrc-")
        with netns.inside(self.vm):
            subprocess.run(["sh"], input=script, text=True, check=True)
        return os.environ | {"MRC_CONFIG": str(folder / f"mrc-{self.name}-h1" / "mrc.toml")}

    def start(self, env: dict[str, str], argv: list[str]) -> Mrc:
        pipe = subprocess.PIPE
        self.running.append(
            Mrc(subprocess.Popen(argv, env=env, stdout=pipe, stderr=pipe, text=True))
        )
        return self.running[-1]

    def end(self) -> None:
        for program in self.running:
            program.end()
        if self.machine in netns.names():
            self.run("down", "--name", self.name)
        for each in (self.machine, self.vm):
            with suppress(FileNotFoundError):
                netns.remove(each)


pytestmark = walls.needs("lab")


@pytest.fixture(params=[*Fabric])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """With a management network in a kernel fabric, and without in an emulated one."""
    site = Site(request.param, management=request.param is Fabric.KERNEL)
    try:
        site.prepare()
        yield site
    finally:
        site.end()


def carriers(site: Site) -> list[bool]:
    return [each.up for each in interfaces(site.vm) if each.name in ("ens1", "ens2")]


def until_sends_on(planes: set[int], events: Iterator[dict[str, Any]]) -> None:
    """Waits for an interval in which `mrc perf` sends over these planes only, and all of them."""
    for event in (each for each in events if each["event"] == "interval"):
        sent = {each["plane"] for each in event["planes"] if each["sent_bytes"]}
        if sent == planes and event["written_bytes"]:
            return
    raise AssertionError(f"it ended before it sent over planes {planes} only")


@pytest.mark.default
def test_real_host__over_all_planes(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`mrc perf` from h0, while one plane is silent, then the link of another is down."""
    assert site.run(*site.up) == 0
    capsys.readouterr()
    assert site.run("join", "h1", *site.own, "--name", site.name, "--json") == 0
    env = site.configure(tmp_path, printed("testbed join", capsys.readouterr().out)["script"])
    bed = Testbed.existing(site.name)
    server = ["ip", "netns", "exec", site.vm, *MRC, "perf", "--server"]
    site.start(env, server).until_listening()
    argv, own = bed.host_command(
        "h0", [*MRC, "perf", "h1", "-t", "300", "-i", "0.1", "--json-stream"]
    )
    client = site.start(own, argv)
    assert client.process.stdout is not None
    events = map(json.loads, client.process.stdout)
    until_sends_on({1, 2}, events)
    counted = bed.links()
    assert counted["h0>t0:1.0"]["packets"] and counted["h1>t0:2.1"]["packets"]
    bed.fail("plane:1")
    until_sends_on({2}, events)
    bed.heal()
    until_sends_on({1, 2}, events)
    bed.fail("link:h1.2", "down")
    until(lambda: carriers(site) == [True, False])
    until_sends_on({1}, events)
    bed.heal()
    until(lambda: carriers(site) == [True, True])
    until_sends_on({1, 2}, events)


def test_real_host__as_any_other(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """But it runs its own programs, and `down` returns its interfaces."""
    assert site.run(*site.up) == 0
    for words, said in (
        (("exec", "h1", "--", "true"), "h1 is a real host, so run its programs there"),
        (("drain", "plane:2"), "h1 is a real host: its routes"),
        (("join", "h0"), "h0 is no real host of this test bed: h1"),
        (("join", "h1", "--interfaces", "a,b,c"), "h1 has 2 planes, not 3"),
    ):
        capsys.readouterr()
        assert site.run(words[0], "--name", site.name, *words[1:]) == 2
        assert said in capsys.readouterr().err
    assert site.run("status", "--name", site.name, "--json") == 0
    (real,) = printed("testbed status", capsys.readouterr().out)["outside"]["hosts"]
    assert (real["host"], real["interfaces"]) == ("h1", ["tap1", "tap2"])
    assert site.run("down", "--name", site.name) == 0
    found = {each.name: each.mtu for each in interfaces(site.machine) if each.up}
    assert found == {"lo": 65536, "tap0": 9000, "tap1": 9000, "tap2": 9000}
