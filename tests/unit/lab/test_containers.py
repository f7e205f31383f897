# SPDX-License-Identifier: Apache-2.0
"""Configurations of real switches: by the grammars of FRR and NVUE, and SONiC's YANG models."""

from __future__ import annotations

import json
import re
from ipaddress import IPv6Interface, IPv6Network
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from printed import printed

from mrc.cli.main import main
from mrc.lab import export
from mrc.testbed.plan import BedPlan, make_plan
from mrc.testbed.shape import Fabric, Shape

SHAPE = Shape(hosts=4, planes=2, t0=2, t1=2, pods=2, t2=1)
PLAN = export.with_link_addresses(make_plan("lab", SHAPE))
NAMES = sorted(export.switches(PLAN))

ADDRESS, PREFIX = r"[0-9a-f:]+", r"[0-9a-f:]+/\d+"
# FRR's user guide: zebra (interfaces, SRv6 locators) and static (routes, static SIDs).
GRAMMAR = "|".join(
    (
        "!.*", "end", r"hostname \S+", "service integrated-vtysh-config", "ipv6 forwarding",
        r"interface \S+", rf" ipv6 address {PREFIX}", " *exit", "segment-routing", " srv6",
        "  locators", r"   locator \w+", rf"    prefix {PREFIX} block-len 32 node-len 16",
        "    behavior usid", "  static-sids",
        rf"   sid {PREFIX} locator \w+ behavior uN", rf"ipv6 route {PREFIX} {ADDRESS} \S+",
    )
)  # fmt: skip
# The NVUE reference of Cumulus Linux 5.15: segment routing, static routes, QoS, packet trimming.
NVUE = "|".join(
    (
        r"system hostname \S+", "router segment-routing srv6 state enabled",
        rf"router segment-routing srv6 locator \w+ prefix {PREFIX}",
        "router segment-routing srv6 locator \\w+ (block-length 32|node-length 16|func-length 0)",
        rf"router segment-routing static srv6-sid {PREFIX} (locator-name \w+|behavior uN)",
        r"qos mapping default-global dscp \d+ switch-priority [0-7]",
        r"qos remark \S+ switch-priority [0-7] dscp \d+",
        "system forwarding packet-trim (state enabled|remark dscp port-level|size 256)",
        "system forwarding packet-trim switch-priority [0-7]",
        rf"interface swp\d+ (ip address {PREFIX}|qos remark profile \S+)",
        r"interface swp\d+ packet-trim egress-eligibility traffic-class [0-7]",
        rf"vrf default router static {PREFIX} (address-family ipv6-unicast|via {ADDRESS})",
    )
)  # fmt: skip


def sonic(name: str, plan: BedPlan = PLAN) -> dict[str, dict[str, dict[str, str]]]:
    found: dict[str, dict[str, dict[str, str]]] = json.loads(export.sonic(plan.nodes[name]))
    return found


def test_switches__are_those_of_all_tiers() -> None:
    both = [f"{tier}-{plane}-{n}" for tier in ("t0", "t1") for plane in (1, 2) for n in (0, 1)]
    assert [*both, "t2-1-0", "t2-2-0"] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_frr__follows_the_documented_grammar(name: str) -> None:
    lines = export.frr(PLAN.nodes[name]).splitlines()
    assert [line for line in lines if not re.fullmatch(GRAMMAR, line)] == []
    depth = 0  # each block ends by exit
    for line in lines:
        opens = re.match(
            r"interface|segment-routing| srv6|  locators|   locator|  static-sids", line
        )
        depth += 1 if opens else -1 if line.strip() == "exit" else 0
        assert line.startswith(" " * (depth - bool(opens)))
    assert depth == 0


def test_frr__of_a_t0() -> None:
    lines = export.frr(PLAN.nodes["t0-2-1"]).splitlines()
    assert "   sid fcbb:2:201::/48 locator mrc behavior uN" in lines
    assert "ipv6 route fcbb:2:e001::/48 fcbb:2:0:1:3::2 h3" in lines
    assert "ipv6 route fcbb:2:3001::/48 fcbb:2:0:2:1:1:0:1 t1-1" in lines
    assert "interface h3" in lines and " ipv6 address fcbb:2:0:1:3::1/126" in lines


@pytest.mark.parametrize("name", NAMES)
def test_nvue__follows_the_documented_grammar(name: str) -> None:
    first, *lines, last = export.nvue(PLAN.nodes[name]).splitlines()
    assert (first, last) == ("set -e", "nv config apply -y")
    assert [line for line in lines if not re.fullmatch(f"nv set ({NVUE})", line)] == []


def test_nvue__of_a_t0() -> None:
    lines = export.nvue(PLAN.nodes["t0-2-1"]).splitlines()
    assert "nv set router segment-routing static srv6-sid fcbb:2:201::/48 behavior uN" in lines
    assert "nv set vrf default router static fcbb:2:e001::/48 via fcbb:2:0:1:3::2" in lines
    assert "nv set interface swp2 ip address fcbb:2:0:1:3::1/126" in lines
    # What is trimmed on the way to a host differs from what is trimmed in the fabric.
    assert "nv set interface swp2 qos remark profile mrc-trimmed-11" in lines
    assert "nv set interface swp3 qos remark profile mrc-trimmed-7" in lines


def test_switches__have_the_same_routes_in_each_form() -> None:
    for name in NAMES:
        commands = export.nvue(PLAN.nodes[name])
        nvue = dict(re.findall(r"router static (\S+) via (\S+)", commands))
        told = re.findall(r"ipv6 route (\S+) (\S+)", export.frr(PLAN.nodes[name]))
        routes = sonic(name)["STATIC_ROUTE"]
        assert dict(told) == nvue
        assert {f"default|{dst}": via for dst, via in told} == {
            key: route["nexthop"] for key, route in routes.items()
        }


@pytest.mark.parametrize("name", NAMES)
def test_sonic__fits_its_yang_models(name: str) -> None:
    """The rules of sonic-srv6, sonic-trimming and sonic-qos that are about these tables."""
    found = sonic(name)
    for text in (value for table in found.values() for row in table.values()
                 for value in row.values()):  # fmt: skip
        assert isinstance(text, str)  # ConfigDB holds only strings
    locators = found["SRV6_MY_LOCATORS"]
    for locator in locators.values():
        assert set(locator) <= {"prefix", "block_len", "node_len", "func_len", "arg_len", "vrf"}
        assert int(locator["block_len"]) + int(locator["node_len"]) + 16 <= 128
    for key, sid in found["SRV6_MY_SIDS"].items():
        its, _, prefix = key.partition("|")
        assert prefix.partition("::")[0].startswith(locators[its]["prefix"].partition("::")[0])
        assert sid == {"action": "uN", "decap_dscp_mode": "pipe"}
    trimming = found["SWITCH_TRIMMING"]["GLOBAL"]
    assert set(trimming) == {"size", "dscp_value", "queue_index"}
    queues = found["TC_TO_QUEUE_MAP"]["MRC"]
    classes = found["DSCP_TO_TC_MAP"]["MRC"]
    assert queues[classes[trimming["dscp_value"]]] == trimming["queue_index"]
    ports = {key for key in found["INTERFACE"] if "|" not in key}
    assert set(found["PORT_QOS_MAP"]) == ports
    addressed = [key.split("|") for key in found["INTERFACE"] if "|" in key]
    networks = {port: IPv6Interface(address).network for port, address in addressed}
    for key, route in found["STATIC_ROUTE"].items():
        assert IPv6Network(key.removeprefix("default|")).prefixlen == 48
        assert any(IPv6Network(route["nexthop"]).subnet_of(networks[port])
                   for port in [route["ifname"]])  # fmt: skip


def test_with_link_addresses__both_ends_are_in_one_network() -> None:
    seen = set()
    for link in PLAN.links:
        if "mgmt" in (link.lower, link.upper):
            continue
        ends = [
            next(
                address
                for at, address in PLAN.nodes[node].addresses
                if at == name and address.network.prefixlen == 126
            )
            for node, name, _ in link.ends
        ]
        assert ends[0].network == ends[1].network and ends[0] != ends[1]
        assert ends[0].network not in seen
        seen.add(ends[0].network)


def test_lab__sonic_beside_linux_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--hosts", "4", "--planes", "2", "--t0", "2", "--switches", str(tmp_path))
    assert main(["testbed", "export", *words, "--switch-image", "sonic:1", "--json"]) == 0
    told: dict[str, Any] = printed("testbed export", capsys.readouterr().out)
    files = {str(Path(name).relative_to(tmp_path)) for name in told["files"]}
    assert {f"t1-1-0/{each}" for each in ("frr.conf", "config_db.json", "nvue.sh")} <= files
    assert {"h0/set-up.sh", "h0/host.toml"} <= files
    assert "t1-1-0/set-up.sh" not in files
    topology = (tmp_path / "lab.clab.yml").read_text()
    assert topology.count("kind: sonic-vs") == 8 and topology.count('image: "sonic:1"') == 8
    assert '- endpoints: ["h3:p2", "t0-2-1:Ethernet4"]' in topology
    assert '- endpoints: ["t0-1-0:Ethernet12", "t1-1-1:Ethernet0"]' in topology
    script = (tmp_path / "h3/set-up.sh").read_text()
    assert "address replace fcbb:2:0:1:3::2/126 dev p2 nodad" in script
    assert "via fcbb:2:0:1:3::1 dev p2" in script and "neighbour replace fe80::1 lladdr" in script


def test_lab__refuses_an_emulated_fabric() -> None:
    emulated = make_plan("lab", replace(SHAPE, fabric=Fabric.EMULATED))
    with pytest.raises(ValueError, match="export a kernel fabric"):
        export.lab(emulated, "mrc", "sonic")
