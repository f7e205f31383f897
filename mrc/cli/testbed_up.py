# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed up`."""

from __future__ import annotations

import argparse

from mrc.cli.output import Output
from mrc.cli.testbed_shape import shape_of
from mrc.cli.testbed_status import summary, to_json
from mrc.testbed import Testbed


def up(args: argparse.Namespace) -> int:
    out = Output.of(args)
    bed = Testbed.of(args.name, shape_of(args))
    built = bed.up()
    out.text(f"{args.name} {'is up' if built else 'was up already'}: {summary(bed.shape)}")
    out.result(to_json(bed, {}) | {"built": built})
    return 0
