# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed fail` and `heal`: begin and end faults."""

from __future__ import annotations

import argparse
from typing import Any

from mrc.cli.arguments import argument, time_argument
from mrc.cli.output import Output, listed
from mrc.cli.testbed_shape import rate_argument
from mrc.fabric.targets import FORMS
from mrc.results import testbed as results
from mrc.results.plain import like
from mrc.testbed.bed import Testbed
from mrc.testbed.fault import Fault, Mode, parse_loss

_share = argument(parse_loss)


def add_fail_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help=f"what fails: {FORMS}")
    parser.add_argument(
        "--mode", choices=[*Mode], default=Mode.SILENT,
        help="silent: drop packets while links stay up; down: take the links down [%(default)s]",
    )  # fmt: skip
    parser.add_argument(
        "--loss", type=_share, metavar="PERCENT",
        help="drop this share of the packets, such as 20%% [100%%; 0%% with --rate or impairments]",
    )  # fmt: skip
    _add_impairments(parser)


def add_heal_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help=f"what to heal: all, {FORMS}")


def _add_impairments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rate", type=_rate, default={}, metavar="RATE",
        help="limit each link to this rate, such as 50mbit, or to a share of its own rate, such as"
        " 10%%",
    )  # fmt: skip
    group = parser.add_argument_group(
        "impairments (require an emulated fabric, or netem in the kernel)"
    )
    for word, text in (
        ("corrupt", "flip a bit in this share of the packets"),
        ("duplicate", "deliver this share of the packets twice"),
        ("reorder", "delay this share of the packets by up to 1 ms"),
    ):
        group.add_argument(f"--{word}", type=_share, metavar="PERCENT", help=text)
    for word, text in (
        ("delay", "delay all packets by this time, such as 1ms"),
        ("jitter", "add a random delay of at most this time"),
    ):
        group.add_argument(
            f"--{word}", type=time_argument, metavar="TIME", dest=f"{word}_ns", help=text
        )


def _rate(text: str) -> dict[str, Any]:
    if text.endswith("%"):
        return {"rate_share": _share(text)}
    return {"rate_bps": rate_argument(text)}


def fail(args: argparse.Namespace) -> int:
    out = Output.of(args)
    bed = Testbed.existing(args.name)
    words = ("corrupt", "duplicate", "reorder", "delay_ns", "jitter_ns")
    impairment = {word: value for word in words if (value := getattr(args, word))}
    bed.fail(args.target, args.mode, args.loss, **impairment, **args.rate)
    fault = bed.faults()[args.target]
    out.text(f"{args.target} fails: {fault}")
    out.result(results.Failed(name=args.name, fault=fault_result(args.target, fault)))
    return 0


def heal(args: argparse.Namespace) -> int:
    out = Output.of(args)
    bed = Testbed.existing(args.name)
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
