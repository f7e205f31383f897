# SPDX-License-Identifier: Apache-2.0
"""Changes the faults of a test bed in the kernel or the emulator."""

from __future__ import annotations

from collections.abc import Mapping

from mrc.fabric.targets import Target
from mrc.testbed import build, control, extras, hops, nft, queues, sizes, state
from mrc.testbed.build import LinkEnd
from mrc.testbed.fault import Fault, Mode, no_rules, rules, table
from mrc.testbed.plan import Plan
from mrc.testbed.shape import Fabric

Faults = Mapping[Target, Fault]


def check(plan: Plan, faults: Faults) -> None:
    """Raises ValueError for faults that this fabric or this kernel cannot have."""
    hops.place(faults, plan.shape)
    if any(each.mode is Mode.DOWN and target.direction for target, each in faults.items()):
        raise ValueError("a link goes down in both directions: use mode silent for one")
    if plan.shape.fabric is Fabric.EMULATED:
        return
    queues.wanted(plan, faults)
    if any(each.touches_packets for each in faults.values()) and not queues.has_netem(plan):
        raise ValueError(
            "this kernel lacks netem (CONFIG_NET_SCH_NETEM), so it can only drop packets and limit "
            "rates: use --fabric emulated"
        )


def change(plan: Plan, before: Faults, after: Faults, ready: nft.Ready | None) -> None:
    """Apply the difference. Calls `ready` when everything is prepared; the change takes effect when
    it returns. None: at once. A link goes up once no fault holds it down.
    """
    down, stay_down = ends_down(plan, before), ends_down(plan, after)
    is_kernel = plan.shape.fabric is Fabric.KERNEL
    nft.apply(_scripts(plan, before, after) if is_kernel else {}, ready)
    build.set_down(plan, [end for end in stay_down if end not in down])
    if is_kernel:
        queues.change(plan, queues.wanted(plan, before), queues.wanted(plan, after))
    else:
        _tell_emulator(plan, after)
    build.set_up(plan, [end for end in down if end not in stay_down], stay_down)
    if is_kernel:
        sizes.change(plan, before, after)
    if plan.shape.outside.hosts:
        extras.need(extras.LENDING).follow(plan, stay_down)


def _scripts(plan: Plan, before: Faults, after: Faults) -> dict[str, str]:
    """Namespace -> nftables script for the changed drops."""
    scripts: dict[str, str] = {}
    for target in {**before, **after}:
        was, shall = before.get(target), after.get(target)
        if was == shall:
            continue
        dropped, drops = (
            {} if fault is None else hops.dropped_by(target, fault, plan.shape)
            for fault in (was, shall)
        )
        for node in {**dropped, **drops}:
            if node not in plan.nodes:  # another machine has it
                continue
            if node in drops:
                script = rules(table(target), [condition for condition, _ in drops[node]])
            else:
                script = no_rules(target)
            namespace = plan.nodes[node].namespace
            scripts[namespace] = scripts.get(namespace, "") + script
    return scripts


def ends_down(plan: Plan, faults: Faults) -> dict[LinkEnd, None]:
    """The ends of links that faults hold down."""
    find = hops.emulated_ends if plan.shape.fabric is Fabric.EMULATED else hops.kernel_ends
    return {
        end: None
        for target, fault in faults.items()
        if fault.mode is Mode.DOWN
        for end in find(target, plan.shape)
        if end[0] in plan.nodes
    }


def _tell_emulator(plan: Plan, faults: Faults) -> None:
    placed = hops.place(faults, plan.shape)
    control.ask(state.folder(plan.name), {"do": "faults", "hops": list(placed.items())})
