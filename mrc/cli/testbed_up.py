# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed up`: the shape of a test bed, as options."""

from __future__ import annotations

import argparse

from mrc.cli.arguments import size_argument, time_argument
from mrc.cli.exits import UsageError
from mrc.cli.output import Output
from mrc.cli.testbed_status import summary, to_json
from mrc.testbed import DEFAULT_RATE, Fabric, Testbed


def add_shape(parser: argparse.ArgumentParser) -> None:
    for option, default, text in (
        ("--hosts", 2, "number of hosts"),
        ("--planes", 4, "number of planes"),
        ("--t1", 2, "T1s per plane"),
        ("--mtu", 9000, "of every link of the fabric, in bytes"),
    ):
        parser.add_argument(
            option, type=int, default=default, metavar="N", help=f"{text} [%(default)s]"
        )
    parser.add_argument(
        "--rate", default=DEFAULT_RATE, metavar="RATE",
        help="of every link of the fabric, such as 10gbit; none for no limit [%(default)s]",
    )  # fmt: skip
    parser.add_argument(
        "--fabric", choices=[*Fabric], default=Fabric.KERNEL,
        help="kernel: a namespace for each switch; emulated: the simulator's switches in real "
        "time, which queue, mark and trim [%(default)s]",
    )  # fmt: skip

    group = parser.add_argument_group("of an emulated fabric")
    for option, metavar, text in (
        ("--delay", "TIME", "of every link, such as 5us [0]"),
        ("--jitter", "TIME", "added to it by chance, up to this [0]"),
        ("--buffer", "SIZE", "of a switch port [10 ms at the rate, at least 256KiB]"),
        ("--ecn-low", "SIZE", "data is marked by chance from here on [a tenth of the buffer]"),
        ("--ecn-high", "SIZE", "and always from here on [four tenths of the buffer]"),
    ):
        parse = time_argument if metavar == "TIME" else size_argument
        group.add_argument(option, type=parse, default=0, metavar=metavar, help=text)
    group.add_argument(
        "--no-trim", action="store_true", help="drop what finds no room, with its header"
    )


def up(args: argparse.Namespace) -> int:
    out = Output.of(args)
    shape = {key: getattr(args, key) for key in ("hosts", "planes", "t1", "rate", "mtu", "fabric")}
    if args.fabric == Fabric.EMULATED:
        shape |= {"delay_ns": args.delay, "jitter_ns": args.jitter, "trim": not args.no_trim}
        shape |= {"buffer_bytes": args.buffer}
        shape |= {"ecn_low_bytes": args.ecn_low, "ecn_high_bytes": args.ecn_high}
    elif any((args.delay, args.jitter, args.buffer, args.ecn_low, args.ecn_high, args.no_trim)):
        raise UsageError(args.prog, "a kernel fabric has none of these: --fabric emulated")
    bed = Testbed(args.name, **shape)
    built = bed.up()
    out.text(f"{args.name} {'is up' if built else 'was up already'}: {summary(bed)}")
    out.result(to_json(bed, {}) | {"built": built})
    return 0
