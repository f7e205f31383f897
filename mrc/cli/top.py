# SPDX-License-Identifier: Apache-2.0
"""`mrc top`: shows running endpoints, on this machine or on a host that allows remote viewing."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from mrc.cli.address import host_and_port
from mrc.cli.arguments import seconds_argument
from mrc.cli.exits import UsageError
from mrc.cli.live import Block, blocks_text, screen
from mrc.cli.output import Output, add_options
from mrc.cli.runner import run_async
from mrc.cli.top_view import endpoint_blocks
from mrc.errors import ConnectError, MrcError
from mrc.exchange.dial import dial
from mrc.fabric import hostconfig
from mrc.observe import local, remote
from mrc.observe.rates import checked, with_rates
from mrc.results.snapshot import Snapshot
from mrc.results.top import Endpoint, Top
from mrc.testbed import rootless

HELP = "watch the QPs, planes and paths of running endpoints"
EXAMPLES = """\
examples:
  mrc top --local                      your endpoints, in all network namespaces
  mrc top h1                           the mrc recv --top that runs on h1
  mrc top --local --json | jq '.endpoints[].qps[] | {peer, rtt_ns}'
"""

_LOOKS = 8  # concurrent requests: each answer may have a megabyte

Look = Callable[[], Awaitable[dict[str, Snapshot]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "host", nargs="?", type=host_and_port, metavar="HOST[:PORT]",
        help="host that runs mrc recv --top or mrc perf --server --top",
    )  # fmt: skip
    parser.add_argument("--local", action="store_true", help="show your endpoints on this machine")
    parser.add_argument(
        "--all-users", action="store_true",
        help="with --local, as root: show the endpoints of all users",
    )  # fmt: skip
    parser.add_argument(
        "-i", "--interval", type=seconds_argument, default=1.0, metavar="SECONDS",
        help="time between two updates, over which rates are averaged [%(default)s]",
    )  # fmt: skip
    parser.add_argument(
        "--once", action="store_true", help="exit after one interval; --json implies it"
    )
    parser.add_argument(
        "--timeout", type=seconds_argument, default=5.0, metavar="SECONDS",
        help="time limit for connecting and for each answer [%(default)s]",
    )  # fmt: skip
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    if (args.host is None) != args.local:
        wrong = "use either a HOST or --local" if args.local else "name a HOST or use --local"
        raise UsageError(args.prog, f"{wrong}; see {args.prog} --help")
    if args.all_users and not (args.local and os.geteuid() == 0):
        raise UsageError(args.prog, "--all-users requires --local and root")
    return run_async(_top(args, Output.of(args)))


async def _top(args: argparse.Namespace, out: Output) -> int:
    source = (
        _local(all_users=args.all_users)
        if args.local
        else _remote(*args.host, timeout=args.timeout)
    )
    async with source as look:
        before = await look()
        if args.once or args.json:
            await asyncio.sleep(args.interval)
            endpoints = _compared(before, await look())
            out.text(blocks_text(_blocks(endpoints)))
            out.result(Top(interval_seconds=args.interval, endpoints=tuple(endpoints)))
            return 0
        with screen(whole=True) as show:
            show(_blocks(_compared({}, before)))
            while True:
                await asyncio.sleep(args.interval)
                now = await look()
                show(_blocks(_compared(before, now)))
                before = now


def _compared(before: dict[str, Snapshot], now: dict[str, Snapshot]) -> list[Endpoint]:
    return [with_rates(before.get(name), snapshot) for name, snapshot in now.items()]


def _blocks(endpoints: list[Endpoint]) -> list[Block]:
    shown = [[*endpoint_blocks(snapshot), Block("")] for snapshot in endpoints]
    if not shown:
        return [Block("no endpoint of this user runs on this machine")]
    return [block for blocks in shown for block in blocks]


@asynccontextmanager
async def _local(all_users: bool) -> AsyncIterator[Look]:
    turns = asyncio.Semaphore(_LOOKS)

    async def look_at(path: Path) -> Snapshot | None:
        try:
            async with turns:
                return checked(await local.look(path, all_users=all_users))
        except (MrcError, OSError):
            return None

    async def look() -> dict[str, Snapshot]:
        """The snapshots of all endpoints, without those that fail to answer."""
        paths = local.sockets(rootless.run_folder(), all_users=all_users)
        found = await asyncio.gather(*map(look_at, paths))
        return {str(p): seen for p, seen in zip(paths, found, strict=True) if seen is not None}

    yield look


@asynccontextmanager
async def _remote(host: str, port: int, *, timeout: float) -> AsyncIterator[Look]:
    try:
        async with asyncio.timeout(timeout):
            channel = await dial(hostconfig.load(os.environ), host, port)
    except TimeoutError as error:
        raise ConnectError(f"{host}: no connection on TCP port {port} in {timeout:g} s") from error

    async def look() -> dict[str, Snapshot]:
        try:
            async with asyncio.timeout(timeout):
                return {host: checked(await remote.look(channel))}
        except TimeoutError as error:
            raise MrcError(f"{host}: no answer in {timeout:g} s") from error
        except MrcError as error:
            raise type(error)(f"{host}: TCP port {port}: {error}") from error

    try:
        yield look
    finally:
        channel.abort()
