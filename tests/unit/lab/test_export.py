# SPDX-License-Identifier: Apache-2.0
"""Topologies for other tools: the commands of a node, and the files."""

from __future__ import annotations

import json
import os
import re
import subprocess
from ipaddress import IPv6Interface, IPv6Network
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from msgspec.structs import replace
from printed import printed

from mrc.cli.main import main
from mrc.lab import export
from mrc.lab.export import containerlab, netns_script
from mrc.testbed.plan import BedPlan, census, make_plan
from mrc.testbed.shape import Fabric, Shape
from mrc.testbed.tiers import LinkChange

# ---- Scripts -------------------------------------------------------------------------------------


SHAPE = Shape(hosts=4, planes=2, t0=2, t1=2)


def lines_of(shape: Shape, node: str) -> list[str]:
    plan = make_plan("lab", shape)
    return export.script(plan, plan.nodes[node]).splitlines()


def test_script__routes_of_each_kind() -> None:
    host, t0 = lines_of(SHAPE, "h0"), lines_of(SHAPE, "t0-2-1")
    assert {
        "route replace local fd00:a::/64 dev lo metric 1024 proto static",
        "route replace fcbb:2:e000::/48 encap seg6local action End.DT6 table 255 dev p2 metric 1024"
        " proto static",
        "route replace fd00:a:2::1:1/128 encap seg6 mode encap.red segs fcbb:1:101:201:e000::"
        " via fe80::1 dev p1 src fd00:a::1:0 metric 1024 proto static",
        "route append fd00:a:2::1/128 encap seg6 mode encap.red segs fcbb:1:101:201:e000::"
        " via fe80::1 dev p1 src fd00:a::1 metric 1024 proto static",
    } <= set(host)
    assert any(line.startswith("ip sr tunsrc set fd00:a::1 || ") for line in host)
    assert (
        "route replace fcbb:2:201::/48 encap seg6local action End flavors next-csid lblen 32"
        " nflen 16 dev h3 metric 1025 proto static"
    ) in t0
    routes = sum(line.startswith("route ") for line in host)
    assert routes == len(make_plan("lab", SHAPE).nodes["h0"].routes)


def test_script__queues_with_rate_with_delay_and_with_both() -> None:
    other = LinkChange("link:h1.1", delay_ns=1_000_000)
    shape = replace(SHAPE, host_rate_bps=8_000_000, fabric_rate_bps=None, links=(other,))
    rate = "qdisc replace dev h1 root handle 1: tbf rate 8000000bit burst 81920 limit 344064"
    delay = "netem delay 1000us limit 100000"
    found = [line for line in lines_of(shape, "t0-1-0") if line.startswith("qdisc")]
    assert found[1:] == [rate, f"qdisc replace dev h1 parent 1:1 handle 2: {delay}"]
    found = [
        line
        for line in lines_of(replace(shape, host_rate_bps=None), "h1")
        if line.startswith("qdisc")
    ]
    assert found == [f"qdisc replace dev p1 root handle 2: {delay}"]


def test_script__interfaces_that_are_there_before_it() -> None:
    """Their settings are not those of `default`, and their addresses not those of the plan."""
    lines = lines_of(SHAPE, "t1-1-1")
    assert "echo 1 > /proc/sys/net/ipv6/conf/t0-1/addr_gen_mode" in lines
    assert "link set dev t0-1 address 02:00:00:00:00:01 mtu 9000" in lines


REFUSING_IP = """\
#!/bin/sh
# As ip -batch: carries out lines up to one that it refuses, the second of the first two files.
count=0
while read -r line; do
    count=$((count + 1))
    if [ $count = 2 ] && [ ! -e "$HOME/refused-twice" ]; then
        [ ! -e "$HOME/refused" ] || touch "$HOME/refused-twice"
        touch "$HOME/refused"
        printf 'RTNETLINK answers: %s\\nCommand failed %s:2\\n' "$REASON" "$2" >&2
        exit 1
    fi
    echo "$line" >> "$HOME/taken"
done < "$2"
"""


@pytest.mark.parametrize(
    ("reason", "code"), [("Cannot allocate memory", 0), ("Operation not supported", 1)]
)
def test_script__repeats_routes_only_for_want_of_memory(
    reason: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "ip").write_text(REFUSING_IP)
    (tmp_path / "ip").chmod(0o755)
    lines = lines_of(SHAPE, "h0")
    begin = lines.index("add_routes() {")
    text = "\n".join(lines[begin : lines.index("END", begin) + 1])
    path = f"{tmp_path}:{os.environ['PATH']}"
    env = {"HOME": str(tmp_path), "PATH": path, "REASON": reason, "TMPDIR": str(tmp_path)}
    done = subprocess.run(["sh", "-e"], input=text, text=True, env=env, stderr=PIPE, check=False)
    routes = [line for line in lines if line.startswith("route ")]
    assert (tmp_path / "taken").read_text().splitlines() == (routes[:1] if code else routes)
    assert (done.returncode, reason in done.stderr) == (code, bool(code))


def test_netns_script__is_valid_bash() -> None:
    text = netns_script(make_plan("lab", SHAPE))
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert text.count("\nlink add name ") == census(SHAPE).links


def test_containerlab__has_a_node_for_each_host_and_switch() -> None:
    plan = make_plan("lab", SHAPE)
    files = containerlab(plan, "here/mrc:1")
    lines = files["lab.clab.yml"].splitlines()
    ends = [json.loads(line.partition(": ")[2]) for line in lines if "endpoints" in line]
    assert len(ends) == len(plan.links) and ["h3:p2", "t0-2-1:h3"] in ends
    heads = [line for line in lines if line.startswith("    ") and line[4] != " "]
    assert [line.strip(" :") for line in heads if line.endswith(":")] == list(plan.nodes)
    assert '    image: "here/mrc:1"' in lines
    assert set(files) == {
        "lab.clab.yml",
        *(f"{node}/set-up.sh" for node in plan.nodes),
        *(f"h{host}/{name}" for host in range(4) for name in ("host.toml", "hosts")),
    }


def test_export__writes_what_it_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lab.sh"
    words = ("testbed", "export", "--planes", "1", "--name", "try")
    assert main([*words, "--netns-script", str(path)]) == 0
    assert capsys.readouterr().out == f"wrote {path}; build it with: {path} up\n"
    assert path.stat().st_mode & 0o111 and "\nname=try\n" in path.read_text()
    assert main([*words, "--netns-script", "-"]) == 0
    assert capsys.readouterr().out == path.read_text()
    assert main([*words, "--containerlab", str(tmp_path / "clab"), "--json"]) == 0
    told = printed("testbed export", capsys.readouterr().out)
    assert (told["name"], told["nodes"]) == ("try", 7)
    assert told["files"][0] == str(tmp_path / "clab" / "try.clab.yml")
    assert all(Path(file).is_file() for file in told["files"])


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        ((), 2, "one of the arguments --netns-script --containerlab --switches is required"),
        (("--netns-script", "-", "--fabric", "emulated"), 2, "only mrc can run an emulated fabric"),
        (("--netns-script", "-", "--json"), 2, "excludes --json"),
        (("--netns-script", "/proc/no/lab.sh"), 1, "/proc/no/lab.sh: "),
        (("--containerlab", "/proc/no"), 1, "/proc/no/lab.clab.yml: "),
        (("--containerlab", "lab", "--image", "a b"), 2, "'a b' is not the name of a container"),
    ],
)
def test_export__wrong_use_is_one_line(
    words: tuple[str, ...], code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["testbed", "export", *words]) == code
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1


# ---- containerlab, and real switches -------------------------------------------------------------


SWITCHED = Shape(hosts=4, planes=2, t0=2, t1=2, pods=2, t2=1)
PLAN = export.with_link_addresses(make_plan("lab", SWITCHED))
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
    emulated = make_plan("lab", replace(SWITCHED, fabric=Fabric.EMULATED))
    with pytest.raises(ValueError, match="export a kernel fabric"):
        export.lab(emulated, "mrc", "sonic")
