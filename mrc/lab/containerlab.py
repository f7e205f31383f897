# SPDX-License-Identifier: Apache-2.0
"""A plan as a topology of containerlab: a container of kind linux for each node. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from mrc.lab import commands
from mrc.testbed.plan import Node, Plan

_INSIDE = "/mrc"


def containerlab(plan: Plan, image: str) -> dict[str, str]:
    """The files of the lab, by their paths: the topology, and a folder for each node.

    containerlab makes the links; then each node runs its own script, which sets addresses, routes
    and queues in three commands. One `exec` line for each route would take hours for large labs.
    Raises ValueError for an emulated fabric.
    """
    commands.check(plan)
    files = {f"{plan.name}.clab.yml": "\n".join(_topology(plan, image)) + "\n"}
    for node in plan.nodes.values():
        text = f"set -e\n{commands.script(plan, node)}"
        if node.name in plan.configs:
            files[f"{node.name}/host.toml"] = plan.configs[node.name]
            files[f"{node.name}/hosts"] = plan.hosts_file
            text += f"cat {_INSIDE}/hosts > /etc/hosts\n"
        files[f"{node.name}/set-up.sh"] = text
    return files


def topology_head(plan: Plan, image: str) -> Iterator[str]:
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


def _topology(plan: Plan, image: str) -> Iterator[str]:
    yield from topology_head(plan, image)
    for node in plan.nodes.values():
        yield from topology_node(plan, node)
    yield "  links:"
    for link in plan.links:
        ends = f'["{link.lower}:{link.lower_name}", "{link.upper}:{link.upper_name}"]'
        yield f"    - endpoints: {ends}"
        yield f"      mtu: {link.mtu}"


def topology_node(plan: Plan, node: Node) -> Iterator[str]:
    """The lines of a node of kind linux."""
    yield f"    {node.name}:"
    yield f'      binds: ["{node.name}:{_INSIDE}"]'
    if node.name in plan.configs:
        yield f'      env: {{MRC_CONFIG: "{_INSIDE}/host.toml"}}'
    yield f'      exec: ["sh {_INSIDE}/set-up.sh"]'
