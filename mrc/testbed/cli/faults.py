# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed fail` and `heal`: faults; `drain` and `undrain`: maintenance without loss."""

from __future__ import annotations

import argparse
from typing import Any

from mrc.cli.arguments import add, argument
from mrc.cli.output import Output, listed
from mrc.fabric.targets import FORMS
from mrc.results.plain import like
from mrc.testbed import bed as beds
from mrc.testbed import results
from mrc.testbed.bed import Testbed
from mrc.testbed.cli.action import Action
from mrc.testbed.cli.shape import rate_argument
from mrc.testbed.fault import Fault, Mode, parse_loss
from mrc.testbed.shape import MIN_RATE_BPS

_share = argument(parse_loss)

FAIL = f"""
target TARGET   what fails: {FORMS}
--mode          silent: drop packets while links stay up; down: take the links down [%(default)s]
--loss PERCENT  drop this share of the packets, such as 20%% [100%%; 0%% with options below]
--rate RATE     limit each link to this rate, such as 50mbit, or to a share of its own rate, such as
                10%%
--mtu N         drop IPv6 packets larger than N bytes, both headers included
"""
IMPAIRMENTS = """
--corrupt PERCENT    flip a bit in this share of the packets
--duplicate PERCENT  deliver this share of the packets twice
--reorder PERCENT    delay this share of the packets by up to 1 ms
--delay TIME         delay all packets by this time, such as 1ms
--jitter TIME        add a random delay of at most this time
"""
DRAIN = """\
Move the hosts' traffic off a part of the fabric: each host withdraws its routes
over it. Packets in flight still arrive. mrc goes on on other paths without a
retransmission. What would leave two hosts without a path is refused.
"""


def add_fail_arguments(parser: argparse.ArgumentParser) -> None:
    mode = {"choices": [*Mode], "default": Mode.SILENT}
    add(parser, FAIL, mode=mode, loss={"type": _share}, rate={"type": _rate, "default": {}})
    group = "impairments (require an emulated fabric, or netem in the kernel)"
    shares = {word: {"type": _share} for word in ("corrupt", "duplicate", "reorder")}
    times = {word: {"dest": f"{word}_ns"} for word in ("delay", "jitter")}
    add(parser.add_argument_group(group), IMPAIRMENTS, **shares, **times)


def add_heal_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, f"target TARGET  what to heal: {FORMS}; all: all faults")


def _rate(text: str) -> dict[str, Any]:
    if text.endswith("%"):
        return {"rate_share": _share(text)}
    rate_bps = rate_argument(text)
    if rate_bps is None or rate_bps < MIN_RATE_BPS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate of at least 1kbit")
    return {"rate_bps": rate_bps}


def fail(args: argparse.Namespace) -> int:
    out = Output.of(args)
    bed = beds.existing(args.name)
    words = ("corrupt", "duplicate", "reorder", "delay_ns", "jitter_ns", "mtu")
    impairment = {word: value for word in words if (value := getattr(args, word)) is not None}
    before = bed.faults().get(args.target)
    bed.fail(args.target, args.mode, args.loss, **impairment, **args.rate)
    fault = bed.faults()[args.target]
    replaced = f"; no longer: {before}" if before not in (None, fault) else ""
    out.text(f"{args.target} fails: {fault}{replaced}")
    out.result(results.Failed(name=args.name, fault=fault_result(args.target, fault)))
    return 0


def heal(args: argparse.Namespace) -> int:
    out = Output.of(args)
    bed = beds.existing(args.name)
    healed = bed.heal(args.target)
    left = bed.faults()
    out.text(f"healed: {listed(healed)}; still failing: {listed(left)}")
    out.result(results.Healed(name=args.name, healed=tuple(healed), failing=tuple(left)))
    return 0


def fault_result(target: str, fault: Fault) -> results.Fault:
    return like(
        results.Fault,
        fault,
        target=target,
        reorder_ns=fault.by_ns if fault.duplicate or fault.reorder else None,
        rate_share=fault.rate_share or None,
    )


def add_drain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DRAIN
    add(parser, f"target TARGET  what to drain: {FORMS}")


def add_undrain_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, f"target TARGET  what to use again: {FORMS}; all: all that is drained")


def drain(args: argparse.Namespace) -> int:
    bed = beds.existing(args.name)
    changed = (args.target,) if bed.drain(args.target) else ()
    Output.of(args).text(f"{args.target} {'is' if changed else 'was already'} drained")
    return _told(args, bed, changed)


def undrain(args: argparse.Namespace) -> int:
    bed = beds.existing(args.name)
    changed = tuple(bed.undrain(args.target))
    Output.of(args).text(f"in use again: {listed(changed)}; still drained: {listed(bed.drained())}")
    return _told(args, bed, changed)


def _told(args: argparse.Namespace, bed: Testbed, changed: tuple[str, ...]) -> int:
    Output.of(args).result(results.Drained(name=args.name, changed=changed, drained=bed.drained()))
    return 0


ACTIONS = {
    "fail": Action(fail, add_fail_arguments),
    "heal": Action(heal, add_heal_arguments),
    "drain": Action(drain, add_drain_arguments),
    "undrain": Action(undrain, add_undrain_arguments),
}
