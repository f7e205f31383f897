# SPDX-License-Identifier: Apache-2.0
"""How an action of `mrc testbed` enters the namespaces of an ordinary user's test beds."""

from __future__ import annotations

import argparse

from mrc.errors import StateError
from mrc.testbed import rootless
from mrc.testbed import state as stored
from mrc.testbed.cli.action import Needs


def enter(args: argparse.Namespace) -> None:
    """Makes an ordinary user root of the user namespace that holds the user's test beds."""
    needs = args.act.needs
    if rootless.enter(create=needs is Needs.NEW) or needs is not Needs.UP:
        return
    if stored.load(args.name) is not None:
        raise StateError(f"test bed {args.name} belongs to root: run this command as root")
    raise StateError(f"test bed {args.name} is not up: mrc testbed up --name {args.name}")


def leave() -> None:
    """Ends the keeper of the namespaces if no test bed is up."""
    rootless.leave(stored.names)
