# SPDX-License-Identifier: Apache-2.0
"""A plan as scripts of ip(8), tc(8) and nft(8), for whoever builds it without mrc. Pure.

The script of a node runs inside it, where the interfaces are already. `netns_script` builds all
nodes as namespaces.
"""

from __future__ import annotations

from collections.abc import Iterator

from mrc.fabric.srv6 import EncapRed, EndDT6, EndUN, Route
from mrc.testbed.plan import LOWER_MAC, UPPER_MAC, BedLink, BedPlan, Egress, Node, mtu_key
from mrc.testbed.shape import Fabric
from mrc.units import digits

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
    """Raises ValueError for a fabric that other tools cannot build."""
    if plan.shape.fabric is Fabric.EMULATED:
        raise ValueError(
            "only mrc can run an emulated fabric: export a kernel fabric, without --fabric"
        )


def script(plan: BedPlan, node: Node) -> str:
    """Lines for sh(1), for a shell that ends at the first failure (`sh -e`)."""
    ends = list(_ends(plan, node))
    parts = [
        "\n".join(_sysctls(node, [name for name, *_ in ends])),
        _here("ip -batch -", [*_links(ends), *_addresses(node)]),
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
            yield f"echo {end.mtu} > /proc/sys/{mtu_key(name)}"


def route_words(route: Route) -> str:
    """A route as a command for `ip -batch`. Routes that share a destination are appended."""
    words = ["route", "append" if route.shared else "replace"]
    words += ["local"] if route.local else []
    words.append(str(route.dst))
    match route.action:
        case EncapRed(segments):
            words.append(f"encap seg6 mode encap.red segs {','.join(map(str, segments))}")
        case EndUN(block_bits, usid_bits):
            words.append("encap seg6local action End flavors next-csid")
            words.append(f"lblen {block_bits} nflen {usid_bits}")
        case EndDT6(table):
            words.append(f"encap seg6local action End.DT6 table {table}")
    words += [] if route.via is None else [f"via {route.via}"]
    words.append(f"dev {route.dev}")
    words += [] if route.src is None else [f"src {route.src}"]
    return " ".join([*words, f"metric {route.metric} proto static"])


def _here(command: str, lines: list[str]) -> str:
    """The command with these lines as its standard input; nothing without lines."""
    return "\n".join([f"{command} <<'END'", *lines, "END"]) if lines else ""


_End = tuple[str, str, BedLink, Egress]


def _ends(plan: BedPlan, node: Node) -> Iterator[_End]:
    """Interface, MAC address, link and its sending, of each end of a link at this node."""
    for link in plan.links:
        for mac, (name, interface, end) in zip((LOWER_MAC, UPPER_MAC), link.ends, strict=True):
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


def _links(ends: list[_End]) -> Iterator[str]:
    yield "link set dev lo up"
    for name, mac, link, _ in ends:
        yield f"link set dev {name} address {mac} mtu {link.mtu}"
        yield f"link set dev {name} up"
        yield f"address flush dev {name} scope link"  # the kernel's own, if it was up before


def _addresses(node: Node) -> Iterator[str]:
    for name, address in node.addresses:
        yield f"address replace {address} dev {name} nodad"
    for name, ipv4, other in node.ipv4:
        ends = f"{ipv4}" if other is None else f"{ipv4.ip} peer {other}/32"
        yield f"address replace {ends} dev {name}"
    for name, neighbour, mac in node.neighbours:
        yield f"neighbour replace {neighbour} lladdr {mac} dev {name} nud permanent"


def _queues(name: str, end: Egress) -> Iterator[str]:
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

    Raises ValueError for an emulated fabric.
    """
    check(plan)
    lines = ["ip -batch - <<'END'", *(_veth(plan, link) for link in plan.links), "END"]
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


def _veth(plan: BedPlan, link: BedLink) -> str:
    lower, upper = plan.nodes[link.lower].namespace, plan.nodes[link.upper].namespace
    return (
        f"link add name {link.lower_name} address {LOWER_MAC} mtu {link.mtu} netns {lower} "
        f"type veth peer name {link.upper_name} address {UPPER_MAC} mtu {link.mtu} netns {upper}"
    )
