# SPDX-License-Identifier: Apache-2.0
"""`mrc testbed view` and `mrc top --web`: a page in a browser that shows endpoints, and a test bed
whose parts it breaks and heals.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mrc.cli.arguments import add
from mrc.cli.output import Output, UsageError
from mrc.cli.runner import run_async
from mrc.errors import InUseError
from mrc.testbed.cli.main import Action
from mrc.view.feed import PageAddress, PageFeed

if TYPE_CHECKING:
    from mrc.cli.top import Look
    from mrc.view.fabric import FabricView


PORT = """
--port PORT  TCP port of the page on 127.0.0.1 [a free one]
"""
HINT = "the page requires tornado: pip install 'mrc-transport[view]'"


def add_port(parser: Any) -> None:
    add(parser, PORT, port={"default": 0})


def listener(prog: str, port: int) -> socket.socket:
    """A socket on loopback; port 0: a free one. Raises UsageError without the extra."""
    if find_spec("tornado") is None:
        raise UsageError(prog, HINT)
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        wrong = f"TCP port {port} is in use: choose another --port"
        raise InUseError(wrong) from error


async def serve(
    out: Output,
    listener: socket.socket,
    source: AbstractAsyncContextManager[Look],
    view: FabricView | None,
) -> int:
    """Shows what `source` finds, and the test bed, until the command is interrupted."""
    from mrc.view.server import served  # the optional extra

    async with source as look, served(PageFeed(look, view), listener) as address:
        out.text(f"the page, until ^C: {address}")
        out.result(PageAddress(url=address))
        await asyncio.Event().wait()
    return 0


def prepared(args: argparse.Namespace) -> socket.socket:
    """Listens before the command joins the namespaces of an ordinary user's test beds: the browser
    is outside. The caller closes the socket.
    """
    args.listener = made = listener(args.prog, args.port)
    return made


def run(args: argparse.Namespace) -> int:
    from mrc.cli.top import here  # slow imports: the engine, and test beds
    from mrc.testbed.bed import Testbed
    from mrc.view.fabric import FabricView

    view = FabricView(Testbed.existing(args.name).name)
    source = here()
    try:
        return run_async(serve(Output.of(args), args.listener, source, view))
    finally:
        view.close()


ACTIONS = {"view": Action(run, add_port, prepared=prepared)}
