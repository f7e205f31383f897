# SPDX-License-Identifier: Apache-2.0
"""Traffic moves off parts of a test bed without loss.

h0 -+- t0:P.0 --+-- t1:P.0 --+-- t0:P.1 -+- h2        P = 1, 2
h1 -+           +-- t1:P.1 --+           +- h3
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from netns.processes import Hosts
from printed import printed
from slowness import until

from mrc.cli.main import main
from mrc.errors import ArgumentError
from mrc.testbed.bed import Testbed
from mrc.testbed.faults import Mode
from mrc.testbed.shape import Fabric

from .conftest import fresh_name, probe

NEAR = {"t0:1.0", "t0:2.0"}
FAR = {"t1:1.0", "t1:1.1", "t1:2.0", "t1:2.1"}


@pytest.fixture(scope="module", params=[*Fabric])
def bed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    with Testbed(
        fresh_name(), hosts=4, planes=2, t0=2, t1=2, rate="200mbit", fabric=request.param
    ) as bed:
        yield bed


@pytest.fixture(autouse=True)
def whole(bed: Testbed, healed: None) -> Iterator[None]:
    yield
    bed.undrain("all")


def routes(bed: Testbed, host: int, peer: int) -> tuple[set[str], int]:
    """The paths over which a host has a route to a peer, and how many of them ECMP uses."""
    argv = ["ip", "-n", bed.plan.nodes[f"h{host}"].namespace, "-6", "route", "show"]
    shown = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    lines = shown.replace("\n\t", " ").splitlines()
    there = {line.split()[0]: line.count("encap seg6 ") for line in lines}
    paths = {path.name for path in bed.shape.paths(host, peer) if str(path.dst) in there}
    return paths, there[str(bed.shape.addresses.host(peer))]


@pytest.mark.parametrize(
    ("target", "near", "far", "other"),
    [
        ("plane:2", {"t0:1.0"}, {"t1:1.0", "t1:1.1"}, {"t1:1.0", "t1:1.1"}),
        ("t1:1.1", NEAR, FAR - {"t1:1.1"}, FAR - {"t1:1.1"}),
        ("t0:2.0", {"t0:1.0"}, {"t1:1.0", "t1:1.1"}, {"t1:1.0", "t1:1.1"}),
        ("link:h0.1", {"t0:2.0"}, {"t1:2.0", "t1:2.1"}, FAR),
        ("uplink:1.1.0", NEAR, FAR - {"t1:1.0"}, FAR - {"t1:1.0"}),
    ],
)
def test_drain__withdraws_the_routes_over_it(
    bed: Testbed, target: str, near: set[str], far: set[str], other: set[str]
) -> None:
    """From h0 to h1 and h2, and from h3 to h1; both ways."""
    assert bed.drain(target) is True
    assert bed.drain(target) is False
    assert bed.drained() == (target,)
    for src, dst, left in ((0, 1, near), (1, 0, near), (0, 2, far), (2, 0, far), (3, 1, other)):
        assert routes(bed, src, dst) == (left, len(left))
    assert bed.undrain(target) == [target] and bed.drained() == ()
    assert routes(bed, 0, 1) == (NEAR, 2) and routes(bed, 3, 1) == (FAR, 4)
    assert set(probe(bed, 0, 2)) == FAR


def test_drain__refuses_the_last_path(bed: Testbed) -> None:
    bed.drain("plane:2")
    with pytest.raises(ArgumentError, match=r"^t0:1.1: h0 and h2 .* since plane:2 is drained$"):
        bed.drain("t0:1.1")
    bed.fail("t1:1.0", Mode.DOWN)
    lost = r"^t1:1.1: h0 and h2 would lose their last path, since plane:2 is drained, t1:1.0 fails$"
    with pytest.raises(ArgumentError, match=lost):
        bed.drain("t1:1.1")
    with pytest.raises(ArgumentError, match=r"in both directions: link:h0\.1"):
        bed.drain("h0>t0:1.0")
    assert bed.drained() == ("plane:2",)


def test_drain__outlasts_a_fault_and_its_healing(bed: Testbed) -> None:
    bed.drain("t1:1.0")
    bed.fail("link:h0.1", Mode.DOWN)
    bed.heal("all")
    assert routes(bed, 0, 2) == (FAR - {"t1:1.0"}, 3)


@pytest.mark.default
def test_drain__while_data_travel(bed: Testbed, hosts: Hosts) -> None:
    """No packet is lost; the drained plane carries no more data, and comes back."""
    hosts.start("h2", "perf", "--server").until_listening()
    few = ("-l", "64K", "--depth", "2", "-b", "50mbit")  # no queue overflows
    pace = (*few, "-t", "600", "-i", "0.1")
    perf = hosts.start("h0", "perf", "h2", *pace, "--json-stream")
    assert perf.process.stdout is not None
    events = (printed("perf --json-stream", line) for line in perf.process.stdout)

    def loads(plane: int) -> Iterator[bool]:
        """Whether each interval carries data on a plane."""
        for event in events:
            if event["event"] == "interval":
                yield any(
                    each["plane"] == plane and each["sent_bytes"] > 0 for each in event["planes"]
                )

    assert next(each for each in loads(2) if each)
    bed.drain("plane:2")
    lost = sum(each["lost"] + each["dropped"] for each in bed.links().values())
    assert next(not each for each in loads(2) if not each)
    assert next(each for each in loads(1) if each)
    bed.undrain("plane:2")
    assert next(each for each in loads(2) if each)
    assert sum(each["lost"] + each["dropped"] for each in bed.links().values()) == lost


def test_commands__say_what_is_drained(bed: Testbed, capsys: pytest.CaptureFixture[str]) -> None:
    name = ("--name", bed.name)
    for _ in range(2):
        assert main(["testbed", "drain", "t1:1.0", *name]) == 0
    assert main(["testbed", "drain", "all", *name]) == 2
    assert main(["testbed", "status", *name]) == 0
    assert main(["testbed", "undrain", "all", *name]) == 0
    told = capsys.readouterr()
    assert told.err == (
        "mrc testbed drain: all: h0 and h1 would lose their last path, since t1:1.0 is drained\n"
    )
    lines = told.out.splitlines()
    assert lines[:2] == ["t1:1.0 is drained", "t1:1.0 was already drained"]
    assert lines[-2:] == ["t1:1.0 is drained", "in use again: t1:1.0; still drained: none"]
    assert main(["testbed", "drain", "t1:1.0", *name, "--json"]) == 0
    assert printed("testbed drain", capsys.readouterr().out)["changed"] == ["t1:1.0"]
    assert main(["testbed", "undrain", "t1:1.0", *name, "--json"]) == 0
    assert printed("testbed undrain", capsys.readouterr().out)["drained"] == []
    until(lambda: routes(bed, 0, 2) == (FAR, 4))
