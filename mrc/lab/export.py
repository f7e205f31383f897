# SPDX-License-Identifier: Apache-2.0
"""A plan for whoever builds it without mrc: as scripts of ip(8), tc(8) and nft(8), as a topology of
containerlab, with a container of kind linux for each node, or with SONiC as switches; and as
configurations of real switches: FRR, SONiC and Cumulus Linux. `mrc testbed export` writes them.

The script of a node runs inside it, where the interfaces are already. `netns_script` builds all
nodes as namespaces. That of a real host, which `mrc testbed join` prints, sets the addresses,
routes and queues that a namespace would have. The host keeps its own default routes, and the
settings of interfaces that the test bed does not use.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv6Interface
from pathlib import Path

from msgspec.structs import replace

from mrc.cli.arguments import add
from mrc.cli.output import Output, UsageError
from mrc.errors import ArgumentError, ConfigError
from mrc.lab.outside import check_interface, links_of
from mrc.linux import netns
from mrc.linux.system import write_whole
from mrc.results import Result
from mrc.testbed import plan as plans
from mrc.testbed.bed import Testbed
from mrc.testbed.cli.main import Action
from mrc.testbed.cli.plan import add_shape
from mrc.testbed.faults import Hop
from mrc.testbed.plan import BedLink, BedPlan, Node
from mrc.testbed.routes import Route, Srv6Action
from mrc.testbed.shape import MANAGEMENT, Shape
from mrc.units import counted, digits

# ---- Scripts -------------------------------------------------------------------------------------


_NETEM_PACKETS = 100_000  # netem's own limit of 1000 would drop packets on a long link
_LARGE_LOST = "echo 'datagrams larger than the MTU will be lost: CONFIG_NFT_TPROXY' >&2"
_SLOWER = "echo 'sends take a tenth longer: ip sr tunsrc requires real root' >&2"
_PER_INTERFACE = "net/ipv6/conf/default/"

# The kernel prepares memory for only some SRv6 routes at a time, and refuses others meanwhile.
_ADD_ROUTES = """\
add_routes() {
    file=$(mktemp)
    cat > "$file"
    for try in $(seq 1000); do
        ! error=$(ip -batch "$file" 2>&1) || { rm "$file"; return; }
        case "$error" in *"Cannot allocate memory"*) ;; *) break ;; esac
        tail -n "+${error##*:}" "$file" > "$file.rest"
        mv "$file.rest" "$file"
        sleep 0.01
    done
    echo "$error" >&2
    exit 1
}
"""
_HEAD = """\
#!/bin/bash
# Made by mrc testbed export --netns-script. It requires root, iproute2 6.1, nftables and Linux 6.1.
set -eu
name={name}
nodes="{nodes}"
hosts="{hosts}"
folder=/run/mrc-script-$name

down() {{
    [ -d "$folder" ] || {{ echo "$name was not up"; return; }}
    for node in $nodes; do
        [ -e "/run/netns/mrc-$name-$node" ] || continue
        ip netns pids "mrc-$name-$node" | xargs -r kill || true
        ip netns delete "mrc-$name-$node"
    done
    rm -rf "$folder"
}}

# Runs a command in a node, with the names of all hosts in its /etc/hosts.
run_in() {{
    node=$1
    shift
    [ -e "/run/netns/mrc-$name-$node" ] || {{ echo "$0: no $node: run $0 up" >&2; exit 1; }}
    case " $hosts " in *" $node "*) export MRC_CONFIG="$folder/$node.toml" ;; esac
    exec ip netns exec "mrc-$name-$node" \\
        sh -c 'mount --bind "$0" /etc/hosts; exec "$@"' "$folder/hosts" "$@"
}}

# A veth may report late that it is up; a look at that one interface updates it.
wait_for() {{
    for try in $(seq 1000); do
        case "$(ip -n "mrc-$name-$1" link show dev "$2")" in *LOWER_UP*) return ;; esac
        sleep 0.01
    done
    echo "$0: $2 in mrc-$name-$1 stays down" >&2
    exit 1
}}

up() {{
    for node in $nodes; do
        [ ! -e "/run/netns/mrc-$name-$node" ] || {{
            echo "$0: mrc-$name-$node exists: run $0 down or mrc testbed down --name $name" >&2
            exit 1
        }}
    done
    trap down EXIT
    mkdir -p "$folder"
    build
    trap - EXIT
    echo "$name is up"
}}

build() {{
for node in $nodes; do ip netns add "mrc-$name-$node"; done
"""
_TAIL = """\
}}

case "${{1-}}" in
    up) up ;;
    down) down ;;
    exec) [ $# -gt 2 ] || {{ echo "usage: $0 exec NODE COMMAND..." >&2; exit 2; }}
        shift
        run_in "$@" ;;
    *) echo "usage: $0 up | down | exec NODE COMMAND...; nodes: $nodes" >&2
        exit 2 ;;
esac
"""


def check(plan: BedPlan) -> None:
    """Raises ArgumentError for a fabric that other tools cannot build."""
    if plan.shape.is_emulated:
        raise ArgumentError(
            "only mrc can run an emulated fabric: export a kernel fabric, without --fabric"
        )


def script(plan: BedPlan, node: Node) -> str:
    """Lines for sh(1), for a shell that ends at the first failure (`sh -e`)."""
    ends = list(_ends(plan, node))
    parts = [
        "\n".join(_sysctls(node, [name for name, *_ in ends])),
        _here("ip -batch -", [*_interfaces(node, ends)]),
        _ADD_ROUTES + _here("add_routes", [route_words(route) for route in node.routes]),
        _here("tc -batch -", [line for name, _, _, end in ends for line in _queues(name, end)]),
        _here("nft -f -", node.rules.splitlines()),
        _here(f"{{ nft -f - || {_LARGE_LOST}; }}", node.reassembly.splitlines()),
        f"ip sr tunsrc set {node.tunnel_source} || {_SLOWER}" if node.tunnel_source else "",
        *mtus(plan, node),
    ]
    return "\n".join(part for part in parts if part) + "\n"


def mtus(plan: BedPlan, node: Node) -> Iterator[str]:
    """Lines that limit what IPv6 sends; an interface that comes up loses the limit."""
    for name, _, _, end in _ends(plan, node):
        if end.mtu is not None:
            yield f"echo {end.mtu} > /proc/sys/{netns.mtu_key(name)}"


def route_words(route: Route) -> str:
    """A route as a command for `ip -batch`. Routes that share a destination are appended."""
    words = ["route", "append" if route.shared else "replace"]
    words += ["local"] if route.local else []
    words.append(str(route.dst))
    match route.action:
        case Srv6Action("encap.red", segments):
            words.append(f"encap seg6 mode encap.red segs {','.join(map(str, segments))}")
        case Srv6Action("End", _, block_bits, usid_bits):
            words.append("encap seg6local action End flavors next-csid")
            words.append(f"lblen {block_bits} nflen {usid_bits}")
        case Srv6Action("End.DT6"):
            words.append(f"encap seg6local action End.DT6 table {route.LOCAL_TABLE}")
    words += [] if route.via is None else [f"via {route.via}"]
    words.append(f"dev {route.dev}")
    words += [] if route.src is None else [f"src {route.src}"]
    return " ".join([*words, f"metric {route.metric} proto static"])


def _here(command: str, lines: list[str]) -> str:
    """The command with these lines as its standard input; nothing without lines."""
    return "\n".join([f"{command} <<'END'", *lines, "END"]) if lines else ""


_End = tuple[str, str, BedLink, plans.Egress]


def _ends(plan: BedPlan, node: Node) -> Iterator[_End]:
    """Interface, MAC address, link and its sending, of each end of a link at this node."""
    for link in plan.links:
        for mac, (name, interface, end) in zip(
            (BedLink.LOWER_MAC, BedLink.UPPER_MAC), link.ends, strict=True
        ):
            if name == node.name:
                yield interface, mac, link, end


def _sysctls(node: Node, interfaces: list[str]) -> Iterator[str]:
    """An interface that exists already has not copied the values of `default`."""
    for key, value in node.sysctls.items():
        yield f"echo {value} > /proc/sys/{key}"
        if key.startswith(_PER_INTERFACE):
            key = key.removeprefix(_PER_INTERFACE)
            yield from (
                f"echo {value} > /proc/sys/net/ipv6/conf/{name}/{key}" for name in interfaces
            )


def _interfaces(node: Node, ends: list[_End]) -> Iterator[str]:
    yield "link set dev lo up"
    for name, mac, link, _ in ends:
        yield f"link set dev {name} address {mac} mtu {link.mtu}"
        yield f"link set dev {name} up"
        yield f"address flush dev {name} scope link"  # the kernel's own, if it was up before
    for name, address in node.addresses:
        yield f"address replace {address} dev {name} nodad"
    for name, ipv4, other in node.ipv4:
        own = f"{ipv4}" if other is None else f"{ipv4.ip} peer {other}/32"
        yield f"address replace {own} dev {name}"
    for name, neighbour, mac in node.neighbours:
        yield f"neighbour replace {neighbour} lladdr {mac} dev {name} nud permanent"


def _queues(name: str, end: plans.Egress) -> Iterator[str]:
    """As `mrc.testbed.build` makes them: a tbf, a netem below it, or a netem alone."""
    if end.shaper is not None:
        shaper = end.shaper
        yield (
            f"qdisc replace dev {name} root handle 1: tbf rate {shaper.rate_bps}bit "
            f"burst {shaper.burst_bytes} limit {shaper.limit_bytes}"
        )
    if end.delay_ns:
        parent = "root" if end.shaper is None else "parent 1:1"
        delay = f"netem delay {digits(end.delay_ns / 1000)}us limit {_NETEM_PACKETS}"
        yield f"qdisc replace dev {name} {parent} handle 2: {delay}"


def netns_script(plan: BedPlan) -> str:
    """The script: `up`, `down`, and `exec NODE COMMAND...`.

    Raises ArgumentError for an emulated fabric.
    """
    check(plan)
    place = {name: node.namespace for name, node in plan.nodes.items()}
    lines = ["ip -batch - <<'END'"]
    lines += [
        f"link add name {link.lower_name} address {link.LOWER_MAC} mtu {link.mtu}"
        f" netns {place[link.lower]} type veth peer name {link.upper_name}"
        f" address {link.UPPER_MAC} mtu {link.mtu} netns {place[link.upper]}"
        for link in plan.links
    ]
    lines.append("END")
    for node in plan.nodes.values():
        inside = script(plan, node)
        lines.append(f"ip netns exec {node.namespace} sh -e <<'NODE'\n{inside}NODE")
    files = {"hosts": plan.hosts_file} | {
        f"{host}.toml": config for host, config in plan.configs.items()
    }
    lines += [f"cat > \"$folder/{name}\" <<'END'\n{text}END" for name, text in files.items()]
    lines += [f"wait_for {link.lower} {link.lower_name}" for link in plan.links]
    for node in plan.nodes.values():
        lines += [f"ip netns exec {node.namespace} sh -c '{line}'" for line in mtus(plan, node)]
    head = _HEAD.format(name=plan.name, nodes=" ".join(plan.nodes), hosts=" ".join(plan.configs))
    return head + "\n".join(lines) + "\n" + _TAIL.format()


# ---- containerlab, and real switches -------------------------------------------------------------
#
# The uSIDs, locators and host addresses are those of the plan. A real switch has MAC addresses of
# its own, so its links need addresses that both ends can look up: a /126 of the plane's locator
# block below uSID 0, which no path uses. As in the plan, the upper end of a link is 1 and the lower
# one 2:
#
#     fcbb:P:0:1:H::/126      link of host H in plane P
#     fcbb:P:0:2:N:S::/126    uplink of T0 N to T1 S
#     fcbb:P:0:3:S:M::/126    link of T1 S to T2 M


_INSIDE = "/mrc"
USIDS = Srv6Action("End")
"""with the lengths that all switches have"""
LOCATOR = "mrc"

_NodeEnd = tuple[str, str]
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
    Raises ArgumentError for an emulated fabric.
    """
    check(plan)
    files = {f"{plan.name}.clab.yml": _topology(plan, image)}
    for node in plan.nodes.values():
        text = f"set -e\n{script(plan, node)}"
        if node.name in plan.configs:
            files[f"{node.name}/host.toml"] = plan.configs[node.name]
            files[f"{node.name}/hosts"] = plan.hosts_file
            text += f"cat {_INSIDE}/hosts > /etc/hosts\n"
        files[f"{node.name}/set-up.sh"] = text
    return files


def _topology(plan: BedPlan, image: str, switch_image: str = "") -> str:
    """For containerlab. `switch_image`: of switches with SONiC; empty: they are Linux, too."""
    sonic = switches(plan) if switch_image else {}
    ports = {
        (name, port): f"Ethernet{4 * i}"
        for name, node in sonic.items()
        for i, port in enumerate(_ports(node))
    }
    lines = [
        "# Made by mrc testbed export. Each node of kind linux requires iproute2 6.1, nftables",
        "# and Linux 6.1; the hosts also mrc.", f"name: {plan.name}", "topology:", "  defaults:",
        "    kind: linux", f'    image: "{image}"', "    network-mode: none", "  nodes:",
    ]  # fmt: skip
    for name in plan.nodes:
        if name in sonic:
            continue
        lines += [f"    {name}:", f'      binds: ["{name}:{_INSIDE}"]']
        if name in plan.configs:
            lines.append(f'      env: {{MRC_CONFIG: "{_INSIDE}/host.toml"}}')
        lines.append(f'      exec: ["sh {_INSIDE}/set-up.sh"]')
    for name in sonic:
        lines += [f"    {name}:", "      kind: sonic-vs", f'      image: "{switch_image}"']
        lines.append(f'      binds: ["{name}:/mrc"]')
    lines.append("  links:")
    for link in plan.links:
        ends = [(link.lower, link.lower_name), (link.upper, link.upper_name)]
        words = ", ".join(f'"{end[0]}:{ports.get(end, end[1])}"' for end in ends)
        lines.append(f"    - endpoints: [{words}]")
        if not sonic:
            lines.append(f"      mtu: {link.mtu}")
    return "\n".join([*lines, ""])


def with_link_addresses(plan: BedPlan) -> BedPlan:
    """The plan with an address of its own at each end of each link, in place of static neighbours.

    Raises ArgumentError for an emulated fabric.
    """
    check(plan)
    ends: dict[_NodeEnd, tuple[IPv6Interface, IPv6Interface]] = {}
    for link in plan.shape.every_link():
        block = plan.shape.addresses.locator_block(link.plane).network_address
        numbers = {"link": (1, link.host, 0), "uplink": (2, link.t0, link.t1)}
        kind, one, two = numbers.get(link.kind, (3, link.t1, link.t2))
        assert one is not None and two is not None
        base = block + (kind << 64 | one << 48 | two << 32)
        upper, lower = IPv6Interface((base + 1, 126)), IPv6Interface((base + 2, 126))
        up, down = Hop.both_ways(link, plan.shape)
        ends[up.port], ends[down.port] = (lower, upper), (upper, lower)
    nodes = {
        name: node if name == MANAGEMENT else _numbered(node, ends)
        for name, node in plan.nodes.items()
    }
    return replace(plan, nodes=nodes)


def _numbered(node: Node, ends: dict[_NodeEnd, tuple[IPv6Interface, IPv6Interface]]) -> Node:
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
    prefix = f"block-len {USIDS.block_bits} node-len {USIDS.usid_bits}"
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
    lengths = {"block_len": str(USIDS.block_bits), "node_len": str(USIDS.usid_bits)}
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
    lines += [f"{locator} prefix {own.dst}", f"{locator} block-length {USIDS.block_bits}"]
    lines += [f"{locator} node-length {USIDS.usid_bits}", f"{locator} func-length 0"]
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
    own = next(route for route in node.routes if route.action == USIDS)
    return own, [route for route in node.routes if route.action is None]


def lab(plan: BedPlan, image: str, switch_image: str) -> dict[str, str]:
    """The files of a lab of containerlab with SONiC as switches, by their paths: as those of
    `containerlab`, and for each switch its configurations.

    Raises ArgumentError for an emulated fabric.
    """
    plan = with_link_addresses(plan)
    found = {
        name: text
        for name, text in containerlab(plan, image).items()
        if name.split("/")[0] not in switches(plan)
    }
    found[f"{plan.name}.clab.yml"] = _topology(plan, image, switch_image)
    for name, node in switches(plan).items():
        found |= {f"{name}/frr.conf": frr(node), f"{name}/config_db.json": sonic(node)}
        found[f"{name}/nvue.sh"] = nvue(node)
    return found


# ---- mrc testbed export --------------------------------------------------------------------------


EXPORT = """\
Write a topology, as plan shows it, for other tools. A namespace script builds
the same namespaces with ip(8) and runs commands in them. containerlab builds
containers, also over several machines, with Linux or SONiC as switches. Faults
and status require mrc testbed up.
"""
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}")
FORMS = """
--netns-script SCRIPT  write a bash script with the actions up, down and exec; -: on stdout
--containerlab FOLDER  write FOLDER/NAME.clab.yml and the files of its nodes
--switches FOLDER      the same with SONiC as switches: for each of them its config_db.json for
                       SONiC, its frr.conf, and its nvue.sh for Cumulus Linux
"""
IMAGE = """
--image IMAGE         container image of the hosts, with --containerlab also of the switches
                      [%(default)s]
--switch-image IMAGE  container image of the switches, for --switches [%(default)s]
"""


class Export(Result, frozen=True, kw_only=True):
    """`mrc testbed export`."""

    name: str
    """Name of the test bed."""
    nodes: int
    """Hosts and switches, each a namespace or a container."""
    files: tuple[str, ...]
    """Paths of the files that it wrote; the first builds the test bed."""


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = EXPORT
    group = parser.add_mutually_exclusive_group(required=True)
    add(group, FORMS)
    images = {"image": {"default": "mrc"}, "switch_image": {"default": "docker-sonic-vs:latest"}}
    add(parser, IMAGE, **images)
    add_shape(parser)


def run_export(args: argparse.Namespace) -> int:
    out = Output.of(args)
    for option, image in (("--image", args.image), ("--switch-image", args.switch_image)):
        if not _IMAGE.fullmatch(image):
            raise UsageError(args.prog, f"{option} {image!r} is not the name of a container image")
    if args.netns_script == "-" and args.json:
        raise UsageError(args.prog, "--netns-script -: excludes --json")
    shape = args.shape(args)
    if shape.outside:
        raise UsageError(args.prog, "other tools join no test bed to the world: only up does")
    plan = plans.make_plan(args.name, shape)
    if args.netns_script == "-":
        sys.stdout.write(netns_script(plan))
        return 0
    if args.netns_script:
        path = Path(args.netns_script)
        then = f"{path} up" if "/" in str(path) else f"./{path} up"
        written = _write(path.parent, {path.name: netns_script(plan)})
        path.chmod(0o755)
    else:
        if args.switches:
            files = lab(plan, args.image, args.switch_image)
        else:
            files = containerlab(plan, args.image)
        written = _write(Path(args.switches or args.containerlab), files)
        then = f"containerlab deploy -t {written[0]}"
    count = counted(len(written), "file") if len(written) > 1 else written[0]
    out.text(f"wrote {count}; build it with: {then}")
    out.result(Export(name=args.name, nodes=len(plan.nodes), files=tuple(written)))
    return 0


def _write(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Writes the files; returns their paths."""
    for name, text in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode())
        except OSError as exc:
            raise ConfigError(f"{path}: {exc.strerror}") from exc
    return [str(folder / name) for name in files]


# ---- A real host ---------------------------------------------------------------------------------


_OF_MACHINE = {
    "net/ipv6/conf/all/seg6_enabled": "1",
    "net/ipv6/conf/lo/seg6_enabled": "1",
    "net/ipv6/fib_multipath_hash_policy": "1",
}
_OF_INTERFACE = {
    "disable_ipv6": "0", "seg6_enabled": "1", "accept_dad": "0", "accept_ra": "0",
    "addr_gen_mode": "1",
}  # fmt: skip

_JOIN_HEAD = """\
#!/bin/sh
# Makes this machine {host} of the mrc test bed {name}. Run it as root; it requires iproute2 6.1 and
# nftables. It may run again. A restart of the machine undoes it.
set -e
folder=/run/mrc-{name}-{host}
mkdir -p "$folder"
cat > "$folder/mrc.toml" <<'END'
{config}END
cat > "$folder/hosts" <<'END'
{hosts}END
"""
_JOIN_TAIL = """\
echo "this is {host}: export MRC_CONFIG=$folder/mrc.toml; names for /etc/hosts: $folder/hosts"
"""


def joined(
    name: str, shape: Shape, host: str, interfaces: Sequence[str] = (), management: str = ""
) -> HostSetup:
    """`interfaces`: the names that its interfaces have on that machine, plane by plane; empty: p1,
    p2, ... Raises ArgumentError.
    """
    real = shape.outside.real_host(host)
    if real is None:
        others = ", ".join(each.host for each in shape.outside.hosts) or "there is none"
        raise ArgumentError(f"{host} is no real host of this test bed: {others}")
    plan = plans.make_plan(name, shape)
    planes = [link.lower_name for link in links_of(real, plan) if link.upper != MANAGEMENT]
    own = list(interfaces or planes)
    if len(own) != len(planes):
        raise ArgumentError(
            f"{host} has {counted(len(planes), 'plane')}, not {len(own)}: name one for each"
        )
    if management and real.management is None:
        raise ArgumentError(f"{host} has no interface of the management network")
    for each in (*own, management or MANAGEMENT):
        check_interface(each)
    names = {"lo": "lo"} | dict(zip(planes, own, strict=True))
    if real.management is not None:
        names[MANAGEMENT] = management or MANAGEMENT
    config = re.sub(
        r'^ifname = "(.*)"$', lambda it: f'ifname = "{names[it[1]]}"', plan.configs[host],
        flags=re.M,
    )  # fmt: skip
    hosts = plans.hosts_file(shape)
    text = script(*_renamed(plan, plan.nodes[host], names))
    return HostSetup(
        host=host,
        interfaces=tuple(own),
        management=names.get(MANAGEMENT),
        config=config,
        hosts_file=hosts,
        script=_JOIN_HEAD.format(host=host, name=name, config=config, hosts=hosts)
        + text
        + _JOIN_TAIL.format(host=host),
    )


def _renamed(plan: BedPlan, node: Node, names: Mapping[str, str]) -> tuple[BedPlan, Node]:
    """The plan and its node, with that machine's interfaces, and without those that it lacks."""
    sysctls = {
        f"net/ipv6/conf/{names[plane]}/{key}": value
        for plane in names
        if plane != "lo"
        for key, value in _OF_INTERFACE.items()
    }
    links = (link for link in plan.links if link.lower == node.name and link.lower_name in names)
    return (
        # Without their delay, which the stand-in adds.
        replace(
            plan,
            links=tuple(
                replace(link, lower_name=names[link.lower_name], up=replace(link.up, delay_ns=0))
                for link in links
            ),
        ),
        replace(
            node,
            sysctls=_OF_MACHINE | sysctls,
            routes=tuple(
                dataclasses.replace(route, dev=names[route.dev])
                for route in node.routes
                if route.dev in names
            ),
            addresses=tuple((names[dev], its) for dev, its in node.addresses if dev in names),
            ipv4=tuple((names[dev], *its) for dev, *its in node.ipv4 if dev in names),
            neighbours=tuple((names[dev], *its) for dev, *its in node.neighbours if dev in names),
        ),
    )


# ---- mrc testbed join ----------------------------------------------------------------------------


JOIN = """\
Print a script for sh(1) that makes a machine, a virtual machine or a container
a real host of the test bed: its addresses, its routes and its configuration
for mrc. Run the script there, as root. Example: mrc testbed join h1
--interfaces ens4,ens5 | ssh root@vm sh
"""
JOIN_OPTIONS = """
host HOST             the real host: h1
--interfaces IFNAMES  its own names of its interfaces, plane by plane: ens4,ens5 [p1,p2,...]
--management IFNAME   its own name of its interface on the management network [mgmt]
"""


class HostSetup(Result, frozen=True, kw_only=True):
    """`mrc testbed join`: what the machine at the other end of the interfaces has to configure."""

    host: str
    """Name of the host."""
    interfaces: tuple[str, ...]
    """Interfaces of that machine, one in each plane."""
    management: str | None
    """Its interface on the management network; null: none."""
    config: str
    """Its host configuration file."""
    hosts_file: str
    """Names and addresses of all hosts, for its /etc/hosts."""
    script: str
    """A script for sh(1) that sets all of it."""


def add_join_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = JOIN
    add(parser, JOIN_OPTIONS)


def run_join(args: argparse.Namespace) -> int:
    out = Output.of(args)
    bed = Testbed.existing(args.name)
    interfaces = args.interfaces.split(",") if args.interfaces else ()
    found = joined(bed.name, bed.shape, args.host, interfaces, args.management or "")
    out.text(found.script.rstrip("\n"))
    out.result(found)
    return 0


ACTIONS = {
    "export": Action(run_export, add_export_arguments, "nothing"),
    "join": Action(run_join, add_join_arguments),
}
