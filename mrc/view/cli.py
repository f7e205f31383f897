# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed view`: a page in a browser that shows a test bed, and breaks and heals its parts."""

from __future__ import annotations

import argparse
from socket import socket

from mrc.cli.output import Output
from mrc.cli.runner import run_async
from mrc.testbed import bed as beds
from mrc.testbed.cli.main import Action
from mrc.testbed.cli.status import summary
from mrc.view import web
from mrc.view.fabric import FabricView


def add_arguments(parser: argparse.ArgumentParser) -> None:
    web.add_port(parser)


def prepared(args: argparse.Namespace) -> socket:
    """Listens before the command joins the namespaces of an ordinary user's test beds: the browser
    is outside. The caller closes the socket.
    """
    args.listener = listener = web.listener(args.prog, args.port)
    return listener


def run(args: argparse.Namespace) -> int:
    from mrc.cli.top import here  # slow import: the engine

    view = FabricView(beds.existing(args.name).name, summary)
    source = here()
    try:
        return run_async(web.serve(Output.of(args), args.listener, source, view))
    finally:
        view.close()


ACTIONS = {"view": Action(run, add_arguments, prepared=prepared)}
