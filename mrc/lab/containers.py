# SPDX-License-Identifier: Apache-2.0
"""A plan as a topology of containerlab, with a container of kind linux for each node, or with SONiC
as switches; and configurations of real switches: FRR, SONiC and Cumulus Linux. Pure.

The uSIDs, locators and host addresses are those of the plan. A real switch has MAC addresses of its
own, so its links need addresses that both ends can look up: a /126 of the plane's locator block
below uSID 0, which no path uses. As in the plan, the upper end of a link is 1 and the lower one 2:

    fcbb:P:0:1:H::/126      link of host H in plane P
    fcbb:P:0:2:N:S::/126    uplink of T0 N to T1 S
    fcbb:P:0:3:S:M::/126    link of T1 S to T2 M
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from ipaddress import IPv6Interface

from msgspec.structs import replace

from mrc.fabric.srv6 import BLOCK_BITS, USID_BITS, EndUN, Route
from mrc.fabric.targets import Target, all_links
from mrc.lab import scripts
from mrc.testbed.faults import hops_of_link, port_of
from mrc.testbed.plan import BedPlan, Node
from mrc.testbed.shape import MANAGEMENT

_INSIDE = "/mrc"
LOCATOR = "mrc"

_End = tuple[str, str]
"""node and interface"""

# Code points of csrc/core/wire.h. Data and control packets have 0.
_TRIMMED, _TRIMMED_LAST_HOP = 7, 11
_TRIMMED_QUEUE = 6
# A trimmed packet keeps all headers of a write: with SRv6 the RETH ends at byte 138.
_TRIM_BYTES = 256


def containerlab(plan: BedPlan, image: str) -> dict[str, str]:
    """The files of the lab, by their paths: the topology, and a folder for each node.

    containerlab makes the links; then each node runs its own script, which sets addresses, routes
    and queues in three scripts. One `exec` line for each route would take hours for large labs.
    Raises ValueError for an emulated fabric.
    """
    scripts.check(plan)
    files = {f"{plan.name}.clab.yml": "\n".join(_topology(plan, image)) + "\n"}
    for node in plan.nodes.values():
        text = f"set -e\n{scripts.script(plan, node)}"
        if node.name in plan.configs:
            files[f"{node.name}/host.toml"] = plan.configs[node.name]
            files[f"{node.name}/hosts"] = plan.hosts_file
            text += f"cat {_INSIDE}/hosts > /etc/hosts\n"
        files[f"{node.name}/set-up.sh"] = text
    return files


def topology_head(plan: BedPlan, image: str) -> Iterator[str]:
    """The lines before the nodes."""
    yield "# Made by mrc testbed export. Each node of kind linux requires iproute2 6.1, nftables"
    yield "# and Linux 6.1; the hosts also mrc."
    yield f"name: {plan.name}"
    yield "topology:"
    yield "  defaults:"
    yield "    kind: linux"
    yield f'    image: "{image}"'
    yield "    network-mode: none"
    yield "  nodes:"


def _topology(plan: BedPlan, image: str) -> Iterator[str]:
    yield from topology_head(plan, image)
    for node in plan.nodes.values():
        yield from topology_node(plan, node)
    yield "  links:"
    for link in plan.links:
        ends = f'["{link.lower}:{link.lower_name}", "{link.upper}:{link.upper_name}"]'
        yield f"    - endpoints: {ends}"
        yield f"      mtu: {link.mtu}"


def topology_node(plan: BedPlan, node: Node) -> Iterator[str]:
    """The lines of a node of kind linux."""
    yield f"    {node.name}:"
    yield f'      binds: ["{node.name}:{_INSIDE}"]'
    if node.name in plan.configs:
        yield f'      env: {{MRC_CONFIG: "{_INSIDE}/host.toml"}}'
    yield f'      exec: ["sh {_INSIDE}/set-up.sh"]'


def with_link_addresses(plan: BedPlan) -> BedPlan:
    """The plan with an address of its own at each end of each link, in place of static neighbours.

    Raises ValueError for an emulated fabric.
    """
    scripts.check(plan)
    ends: dict[_End, tuple[IPv6Interface, IPv6Interface]] = {}
    for link in all_links(plan.shape):
        upper, lower = _addresses(plan, link)
        up, down = hops_of_link(link, plan.shape)
        ends[port_of(up)], ends[port_of(down)] = (lower, upper), (upper, lower)
    nodes = {
        name: node if name == MANAGEMENT else _numbered(node, ends)
        for name, node in plan.nodes.items()
    }
    return replace(plan, nodes=nodes)


def _addresses(plan: BedPlan, link: Target) -> tuple[IPv6Interface, IPv6Interface]:
    """Of the upper and of the lower end."""
    block = plan.shape.addresses.locator_block(link.plane).network_address
    numbers = {"link": (1, link.host, 0), "uplink": (2, link.t0, link.t1)}
    kind, one, two = numbers.get(link.kind, (3, link.t1, link.t2))
    assert one is not None and two is not None
    base = block + (kind << 64 | one << 48 | two << 32)
    return IPv6Interface((base + 1, 126)), IPv6Interface((base + 2, 126))


def _numbered(node: Node, ends: dict[_End, tuple[IPv6Interface, IPv6Interface]]) -> Node:
    ours = {name: pair for (at, name), pair in ends.items() if at == node.name}
    return replace(
        node,
        # Linux asks for its neighbours only from a link-local address: those of the plan stay.
        addresses=(*node.addresses, *((name, pair[0]) for name, pair in ours.items())),
        neighbours=tuple(each for each in node.neighbours if each[0] not in ours),
        routes=tuple(
            dataclasses.replace(route, via=ours[route.dev][1].ip)
            if route.via is not None and route.dev in ours
            else route
            for route in node.routes
        ),
    )


def switches(plan: BedPlan) -> dict[str, Node]:
    """The switches of a plan."""
    return {
        name: node
        for name, node in plan.nodes.items()
        if name not in plan.configs and name != MANAGEMENT
    }


def frr(node: Node) -> str:
    """`frr.conf` of a switch, for FRR with static SIDs (10.3). Its uN SID is a route over `sr0`."""
    own, others = _routes(node)
    prefix = f"block-len {BLOCK_BITS} node-len {USID_BITS}"
    lines = ["! uN needs an interface: ip link add sr0 type dummy; ip link set sr0 up"]
    lines += [f"hostname {node.name}", "service integrated-vtysh-config", "ipv6 forwarding", "!"]
    for name, address in _ports(node).items():
        lines += [f"interface {name}", f" ipv6 address {address}", "exit", "!"]
    lines += [
        "segment-routing", " srv6", "  locators", f"   locator {LOCATOR}",
        f"    prefix {own.dst} {prefix}", "    behavior usid", "   exit", "  exit",
        "  static-sids", f"   sid {own.dst} locator {LOCATOR} behavior uN", "  exit", " exit",
        "exit", "!",
    ]  # fmt: skip
    lines += [f"ipv6 route {route.dst} {route.via} {route.dev}" for route in others]
    return "\n".join([*lines, "!", "end", ""])


def sonic(node: Node) -> str:
    """Tables of SONiC's ConfigDB of a switch, for `config load`, which adds them to others."""
    own, others = _routes(node)
    ports = {name: f"Ethernet{4 * i}" for i, name in enumerate(_ports(node))}
    interfaces: dict[str, dict[str, str]] = {name: {} for name in ports.values()}
    interfaces |= {f"{ports[name]}|{address}": {} for name, address in _ports(node).items()}
    lengths = {"block_len": str(BLOCK_BITS), "node_len": str(USID_BITS)}
    tables = {
        "DEVICE_METADATA": {"localhost": {"hostname": node.name}},
        "INTERFACE": interfaces,
        "SRV6_MY_LOCATORS": {LOCATOR: {"prefix": str(own.dst.network_address), **lengths}},
        "SRV6_MY_SIDS": {f"{LOCATOR}|{own.dst}": {"action": "uN", "decap_dscp_mode": "pipe"}},
        "STATIC_ROUTE": {
            f"default|{route.dst}": {"nexthop": str(route.via), "ifname": ports[route.dev]}
            for route in others
        },
        "SWITCH_TRIMMING": {
            "GLOBAL": {
                "size": str(_TRIM_BYTES),
                "dscp_value": str(_TRIMMED),
                "queue_index": str(_TRIMMED_QUEUE),
            }
        },
        "DSCP_TO_TC_MAP": {
            "MRC": {
                "0": "0",
                str(_TRIMMED): str(_TRIMMED_QUEUE),
                str(_TRIMMED_LAST_HOP): str(_TRIMMED_QUEUE),
            }
        },
        "TC_TO_QUEUE_MAP": {"MRC": {"0": "0", str(_TRIMMED_QUEUE): str(_TRIMMED_QUEUE)}},
        "PORT_QOS_MAP": {
            name: {"dscp_to_tc_map": "MRC", "tc_to_queue_map": "MRC"} for name in ports.values()
        },
    }
    return json.dumps(tables, indent=2) + "\n"


def nvue(node: Node) -> str:
    """Commands of NVUE that configure a switch with Cumulus Linux from 5.14 on (Spectrum-4)."""
    own, others = _routes(node)
    ports = {name: f"swp{i}" for i, name in enumerate(_ports(node), 1)}
    locator = f"router segment-routing srv6 locator {LOCATOR}"
    sid = f"router segment-routing static srv6-sid {own.dst}"
    trim = "system forwarding packet-trim"
    lines = [f"system hostname {node.name}", "router segment-routing srv6 state enabled"]
    lines += [f"{locator} prefix {own.dst}", f"{locator} block-length {BLOCK_BITS}"]
    lines += [f"{locator} node-length {USID_BITS}", f"{locator} func-length 0"]
    lines += [f"{sid} locator-name {LOCATOR}", f"{sid} behavior uN"]
    for dscp in (_TRIMMED, _TRIMMED_LAST_HOP):
        lines.append(f"qos mapping default-global dscp {dscp} switch-priority {_TRIMMED_QUEUE}")
        lines.append(f"qos remark {_remark(dscp)} switch-priority {_TRIMMED_QUEUE} dscp {dscp}")
    lines += [f"{trim} state enabled", f"{trim} remark dscp port-level"]
    lines += [f"{trim} size {_TRIM_BYTES}", f"{trim} switch-priority {_TRIMMED_QUEUE}"]
    for name, address in _ports(node).items():
        port = f"interface {ports[name]}"
        dscp = _TRIMMED_LAST_HOP if name.startswith("h") else _TRIMMED
        lines += [f"{port} ip address {address}", f"{port} qos remark profile {_remark(dscp)}"]
        lines.append(f"{port} packet-trim egress-eligibility traffic-class 0")
    for route in others:
        static = f"vrf default router static {route.dst}"
        lines += [f"{static} address-family ipv6-unicast", f"{static} via {route.via}"]
    return "\n".join(["set -e", *(f"nv set {line}" for line in lines), "nv config apply -y", ""])


def _remark(dscp: int) -> str:
    """The profile of ports that give trimmed packets this code point."""
    return f"mrc-trimmed-{dscp}"


def _ports(node: Node) -> dict[str, IPv6Interface]:
    """The interfaces of a switch in the order of its front panel, with their own addresses."""
    return {name: address for name, address in node.addresses if not address.ip.is_link_local}


def _routes(node: Node) -> tuple[Route, list[Route]]:
    """The route that shifts the switch's own uSID, and the others."""
    own = next(route for route in node.routes if isinstance(route.action, EndUN))
    return own, [route for route in node.routes if route.action is None]


def lab(plan: BedPlan, image: str, switch_image: str) -> dict[str, str]:
    """The files of a lab of containerlab with SONiC as switches, by their paths: as those of
    `containerlab`, and for each switch its configurations.

    Raises ValueError for an emulated fabric.
    """
    plan = with_link_addresses(plan)
    found = {
        name: text
        for name, text in containerlab(plan, image).items()
        if name.split("/")[0] not in switches(plan)
    }
    topology = "\n".join(_sonic_topology(plan, image, switch_image)) + "\n"
    found[f"{plan.name}.clab.yml"] = topology
    for name, node in switches(plan).items():
        found |= {f"{name}/frr.conf": frr(node), f"{name}/config_db.json": sonic(node)}
        found[f"{name}/nvue.sh"] = nvue(node)
    return found


def _sonic_topology(plan: BedPlan, image: str, switch_image: str) -> Iterator[str]:
    """The topology of `containerlab`, with another kind of switches."""
    ports = {
        (name, port): f"Ethernet{4 * i}"
        for name, node in switches(plan).items()
        for i, port in enumerate(_ports(node))
    }
    nodes = {name: node for name, node in plan.nodes.items() if name not in switches(plan)}
    yield from topology_head(plan, image)
    for node in nodes.values():
        yield from topology_node(plan, node)
    for name in switches(plan):
        yield f"    {name}:"
        yield "      kind: sonic-vs"
        yield f'      image: "{switch_image}"'
        yield f'      binds: ["{name}:/mrc"]'
    yield "  links:"
    for link in plan.links:
        ends = [(link.lower, link.lower_name), (link.upper, link.upper_name)]
        words = ", ".join(f'"{end[0]}:{ports.get(end, end[1])}"' for end in ends)
        yield f"    - endpoints: [{words}]"
