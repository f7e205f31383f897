# SPDX-License-Identifier: Apache-2.0
"""A plan as one bash script that builds the same namespaces without mrc. Pure."""

from __future__ import annotations

from mrc.lab import commands
from mrc.testbed.plan import LOWER_MAC, UPPER_MAC, Link, Plan

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


def netns_script(plan: Plan) -> str:
    """The script: `up`, `down`, and `exec NODE COMMAND...`.

    Raises ValueError for an emulated fabric.
    """
    commands.check(plan)
    lines = ["ip -batch - <<'END'", *(_veth(plan, link) for link in plan.links), "END"]
    for node in plan.nodes.values():
        inside = commands.script(plan, node)
        lines.append(f"ip netns exec {node.namespace} sh -e <<'NODE'\n{inside}NODE")
    files = {"hosts": plan.hosts_file} | {
        f"{host}.toml": config for host, config in plan.configs.items()
    }
    lines += [f"cat > \"$folder/{name}\" <<'END'\n{text}END" for name, text in files.items()]
    lines += [f"wait_for {link.lower} {link.lower_name}" for link in plan.links]
    for node in plan.nodes.values():
        lines += [
            f"ip netns exec {node.namespace} sh -c '{line}'" for line in commands.mtus(plan, node)
        ]
    head = _HEAD.format(name=plan.name, nodes=" ".join(plan.nodes), hosts=" ".join(plan.configs))
    return head + "\n".join(lines) + "\n" + _TAIL.format()


def _veth(plan: Plan, link: Link) -> str:
    lower, upper = plan.nodes[link.lower].namespace, plan.nodes[link.upper].namespace
    return (
        f"link add name {link.lower_name} address {LOWER_MAC} mtu {link.mtu} netns {lower} "
        f"type veth peer name {link.upper_name} address {UPPER_MAC} mtu {link.mtu} netns {upper}"
    )
