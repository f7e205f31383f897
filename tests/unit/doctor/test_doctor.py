# SPDX-License-Identifier: Apache-2.0
"""The findings of `mrc doctor` and their display."""

from __future__ import annotations

import platform
from ipaddress import ip_interface

import pytest
from msgspec.structs import replace
from printed import printed

from mrc import doctor, products
from mrc.cli.main import main
from mrc.doctor import POINT_TO_POINT, Finding, State, line, summary
from mrc.engine import native
from mrc.linux.rtnetlink import Interface

OK = Finding(POINT_TO_POINT, State.OK, "a write over loopback")
SLOW = Finding("netem", State.LIMITED, "the kernel has no netem", "no delays", "--fabric emulated")
PACKAGE = Finding("package cffi", State.OK, "2.0")
DEAD = Finding(POINT_TO_POINT, State.MISSING, "no route", "no data", "a kernel")


def test_line__says_what_is_found_what_follows_and_what_helps() -> None:
    assert line(OK) == "ok       point to point       a write over loopback"
    assert line(SLOW) == (
        "limited  netem                the kernel has no netem; no delays; remedy: "
        "--fabric emulated"
    )


def test_summary__counts() -> None:
    assert summary([OK, SLOW], can_run=True) == "1 ok, 1 limited: mrc can run here"
    assert summary([DEAD], can_run=False) == "1 missing: mrc CANNOT run here"


@pytest.mark.parametrize(("findings", "code"), [([OK, SLOW], 0), ([DEAD, SLOW], 1)])
def test_doctor__exits_by_whether_mrc_can_run(
    findings: list[Finding],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(doctor, "examine_host", lambda run: findings)
    monkeypatch.setattr(doctor, "examine", lambda: [PACKAGE])
    monkeypatch.setattr(products, "FINDINGS", ("mrc.absent.findings", "mrc.doctor"))
    assert main(["doctor", "--json"]) == code
    told = printed("doctor", capsys.readouterr().out)
    assert told["can_run"] is (code == 0)
    assert told["findings"][1] == {
        "name": "netem", "state": "limited", "found": "the kernel has no netem",
        "consequence": "no delays", "remedy": "--fabric emulated",
    }  # fmt: skip
    assert told["findings"][2]["name"] == "package cffi"


@pytest.mark.parametrize(
    ("library", "state", "remedy"),
    [
        ("IPsec-MB", State.OK, ""),
        ("libcrypto", State.LIMITED, "apt-get install libipsec-mb-dev"),
        (None, State.LIMITED, "apt-get install openssl; unset MRC_AEAD=libcrypto"),
    ],
)
def test_sealing__names_the_library(
    library: str | None, state: State, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library is None:
        monkeypatch.setenv("MRC_AEAD", "libcrypto")
    monkeypatch.setattr(native, "aead_name", lambda: library)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    found = doctor._sealing()
    assert found.state is state and found.remedy.startswith(remedy)
    assert bool(found.consequence) == (state is not State.OK)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")  # has no IPsec-MB
    assert (doctor._sealing().state is State.OK) == (library is not None)


ONE_NETWORK = ("10.0.1.1/24", "10.0.1.2/24")


@pytest.mark.parametrize(
    ("addresses", "settings", "state", "says"),
    [
        (("10.0.1.1/24", "10.0.2.1/24"), {}, State.OK, "no two interfaces"),
        (ONE_NETWORK, {"arp_ignore": 1}, State.OK, "answer only for their own addresses"),
        (ONE_NETWORK, {}, State.LIMITED, "mrc takes them there, and uses IPv6 on these links"),
        (ONE_NETWORK, {"rp_filter": 2}, State.LIMITED, "mrc takes them there"),
        (ONE_NETWORK, {"rp_filter": 1}, State.LIMITED, "but rp_filter=1 drops them"),
    ],
)
def test_arp__of_interfaces_in_one_network(
    addresses: tuple[str, ...], settings: dict[str, int], state: State, says: str
) -> None:
    links = [
        Interface(f"eth{n}", n, 1500, True, tuple(map(ip_interface, (each, f"fe80::{n}/64"))))
        for n, each in enumerate(addresses, 2)
    ]
    found = doctor.arp(links, lambda nic, name: settings.get(name, 0))
    assert found.state is state and says in f"{found.found}; {found.consequence}"
    if state is not State.OK:
        assert found.remedy.startswith("sysctl -w net.ipv4.conf.all.arp_ignore=1 ")
        assert ("rp_filter=2" in found.remedy) == (settings.get("rp_filter") == 1)
    bare = [replace(each, addresses=each.addresses[:1]) for each in links]
    without = doctor.arp(bare, lambda nic, name: settings.get(name, 0))
    assert without.state is state
    assert ("without IPv6 a link may be idle" in without.consequence) == (state is not State.OK)


def test_sealing__is_one_of_the_findings() -> None:
    found = {each.name: each for each in doctor.examine_host()}
    assert found["sealed packets"].found == native.aead_name()
    assert found[POINT_TO_POINT].state is State.OK
    assert "ARP" in found
