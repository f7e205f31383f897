# SPDX-License-Identifier: Apache-2.0
"""`mrc send` and `mrc recv` as processes in two hosts of a test bed, with and without faults.

h0 --- plane 1 (T0, 2 x T1, T0) --- h1      100 Mbit/s each; the OOB exchange runs over a
 |---- plane 2 ---------------------|       management network that no fault touches
 |---- plane 3 ---------------------|
 '---- plane 4 ---------------------'
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from netns.plain import without_route
from netns.processes import Hosts
from printed import printed

from mrc.testbed.bed import Testbed
from mrc.testbed.shape import Fabric

from .conftest import fresh_name

pytestmark = pytest.mark.usefixtures("healed")

PLANES = 4
MTU = 8844  # payload bytes at an interface MTU of 9000
MIDDLE = 24 << 20


@pytest.fixture(scope="module")
def bed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    shape = getattr(request, "param", {"planes": PLANES, "t1": 2, "rate": "100mbit"})
    with Testbed(fresh_name(), **shape) as bed:
        yield bed


def make(tmp_path: Path, name: str, size: int, seed: int = 1) -> Path:
    path = tmp_path / name
    path.write_bytes(random.Random(seed).randbytes(size))
    return path


def same(left: Path, right: Path) -> bool:
    return left.read_bytes() == right.read_bytes()


# ---- Without faults -------------------------------------------------------------------------


@pytest.mark.default
def test_recv__serves_several_senders_at_once_until_interrupted(
    hosts: Hosts, tmp_path: Path, inbox: Path
) -> None:
    files = [make(tmp_path, f"file{n}", MIDDLE // 2, n) for n in range(3)]
    receiver = hosts.recv(inbox)
    for sender in [hosts.send(file) for file in files]:
        sender.ends(0)
    hosts.send(make(tmp_path, "later", 5)).ends(0)
    receiver.process.send_signal(signal.SIGINT)
    output = receiver.ends(130)
    assert len(output.splitlines()) == 4
    assert all(same(file, inbox / file.name) for file in files)


def test_paths__shows_every_ev(hosts: Hosts, inbox: Path) -> None:
    receiver = hosts.recv(inbox, "--once")
    shown = printed("paths", hosts.start("h0", "paths", "h1", "--json").ends(0))
    assert [(ev["plane"], ev["path"]) for ev in shown["evs"]] == [
        (plane, f"t1:{plane}.{t1}") for plane in range(1, 5) for t1 in range(2)
    ]
    assert shown["evs"][3]["usids"] == ["0101", "0201", "e000"]
    assert {ev["state"] for ev in shown["evs"]} == {"GOOD"}
    table = hosts.start("h0", "paths", "h1").ends(0)
    assert len(table.splitlines()) == 10 and "0101 0201 e000" in table
    assert f"h1: 4 of 4 planes and 8 of 8 paths are good; a packet carries {MTU} B" in table
    some = hosts.start("h0", "paths", "h1", "--json", "-B", "p2", "-B", "p4").ends(0)
    assert {ev["plane"] for ev in printed("paths", some)["evs"]} == {2, 4}
    none = hosts.start("h0", "paths", "h1", "-B", "p9")
    none.ends(1)
    assert "p9 is no port of the host configuration, which has p1" in none.complaint()
    assert receiver.process.poll() is None, "a query of the paths does not count for --once"


def test_paths__a_silent_plane_is_not_good(hosts: Hosts, bed: Testbed, inbox: Path) -> None:
    hosts.recv(inbox)
    bed.fail("plane:2")
    looking = hosts.start("h0", "paths", "h1", "--json")
    shown = printed("paths", looking.ends(0))
    assert looking.complaint() == "mrc paths: plane 2 (p2) to h1 does not answer"
    good = {ev["plane"] for ev in shown["evs"] if ev["state"] == "GOOD"}
    assert good == {1, 3, 4}


# ---- Faults of the fabric -------------------------------------------------------------------


@pytest.mark.default
@pytest.mark.parametrize(
    ("fault", "lost"),
    [
        ({"target": "plane:2"}, 2),
        pytest.param({"target": "plane:2", "mode": "down"}, 2, marks=[pytest.mark.slow]),
        pytest.param({"target": "plane:2", "loss": 0.2}, None, marks=[pytest.mark.slow]),
        pytest.param({"target": "t1:3.0"}, None, marks=[pytest.mark.slow]),
        pytest.param({"target": "link:h1.1", "mode": "down"}, 1, marks=[pytest.mark.slow]),
    ],
    ids=["silent", "down", "lossy", "t1", "link"],
)
def test_send__a_fault_in_the_middle(
    hosts: Hosts, bed: Testbed, tmp_path: Path, inbox: Path, fault: dict[str, Any], lost: int | None
) -> None:
    file, fed = make(tmp_path, "a", MIDDLE), tmp_path / "fed"
    receiver = hosts.recv(inbox, "--once")
    with hosts.send_fed(fed, "--rate", "100mbit", "--json", file) as sender:
        receiver.until_received(MIDDLE // 8)
        bed.fail(**fault)
        if lost is not None:
            sender.until_suspended(lost)
        receiver.until_received(receiver.received() + MIDDLE // 4)
        bed.heal()
    sent = printed("send", sender.ends(0))
    receiver.ends(0)
    assert same(file, inbox / "a") and same(fed, inbox / "stdin")
    if "mode" not in fault:  # who sees his port go down may lose nothing
        assert sent["retransmitted_packets"] > 0
    if lost is not None:
        assert lost in {each["plane"] for each in sent["outages"]}, "others may stall, too"
        (told,) = sender.lines
        assert f"plane {lost} was lost " in told, "at, or for, by how long it took"


@pytest.mark.slow
def test_send__a_missing_route_costs_one_path(
    hosts: Hosts, bed: Testbed, tmp_path: Path, inbox: Path
) -> None:
    file = make(tmp_path, "a", 2 * MIDDLE)
    receiver = hosts.recv(inbox, "--once")
    sender = hosts.send("--json", file)
    receiver.until_received(MIDDLE // 4)
    with without_route(bed.plan.nodes["h0"].namespace, "fd00:a:1::2:1"):
        sent = printed("send", sender.ends(0))
    receiver.ends(0)
    assert same(file, inbox / "a")
    bad = [ev["path"] for ev in sent["evs"] if ev["state"] != "GOOD"]
    assert bad == ["t1:2.1"]
    moved = [plane["sent_bytes"] for plane in sent["planes"]]
    assert min(moved) > 0.8 * max(moved), "the plane's other path carries its share"


@pytest.mark.parametrize(
    "bed", [{"planes": 2, "t1": 1, "rate": "100mbit"}], indirect=True, ids=["few planes"]
)
@pytest.mark.slow
def test_send__goes_on_by_itself(hosts: Hosts, bed: Testbed, tmp_path: Path, inbox: Path) -> None:
    """Both ends wait while no plane is left."""
    file, size = make(tmp_path, "a", 32 << 20), 32 << 20
    receiver = hosts.recv(inbox, "--once", "--json")
    sender = hosts.send("--json", file)
    receiver.until_received(size // 4)
    bed.fail(["plane:1", "plane:2"])
    sender.until_says("all paths to h1 are lost")
    bed.heal()
    result = printed("send", sender.ends(0))
    assert result["retries"] == 1 and result["resumed_bytes"] >= size // 8
    receiver.ends(0)
    assert same(file, inbox / "a") and os.listdir(inbox) == ["a"]


# ---- A long path ---------------------------------------------------------------------------------


PAYLOAD = 1344  # at an interface MTU of 1500


FAR = {"planes": 4, "t1": 2, "mtu": 1500, "rate": "200mbit", "delay_ns": 31_000_000}


@pytest.mark.parametrize("bed", [FAR | {"fabric": Fabric.EMULATED}], indirect=True, ids=["far"])
@pytest.mark.slow
def test_send__several_qps_where_the_way_is_long(hosts: Hosts, tmp_path: Path, inbox: Path) -> None:
    file = make(tmp_path, "a", 160 << 20)
    receiver = hosts.recv(inbox, "--once", "--json", "--bins")
    sent = printed("send", hosts.send("--json", file).ends(0))
    received = printed("recv", receiver.ends(0))
    assert same(file, inbox / "a")
    assert (sent["mpr"], sent["path_mtu_bytes"]) == (4096, PAYLOAD)
    assert 1 < sent["qps"] == received["qps"] <= 16
    moved = sum(plane["received_bytes"] for plane in received["planes"])
    assert 1 <= moved / (160 << 20) < 1.01, "over all QPs each byte once, plus some messages"
    recorded = sum(received["bins"]["bytes"])
    assert recorded == pytest.approx(moved, rel=0.001), "of all QPs, except some messages"
    assert len(sent["evs"]) == 8 * sent["qps"]
