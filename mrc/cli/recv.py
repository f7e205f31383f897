# SPDX-License-Identifier: Apache-2.0
"""`mrc recv`: takes files from any number of senders at a time."""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

import mrc
from mrc.cli import progress, views
from mrc.cli.address import DEFAULT_PORT, port_number
from mrc.cli.output import Output, add_options
from mrc.cli.quantities import byte_count
from mrc.cli.report import file_line, slow_planes, transfer_json
from mrc.cli.runner import run_async
from mrc.cli.serving import session_failed
from mrc.endpoint import Context, Listener
from mrc.qp import QP
from mrc.session import let_look
from mrc.transfer import SERVICE, Joins, OutputDirectory, Session, accept_session, receive_files
from mrc.transfer.joined import JOIN
from mrc.transfer.messages import MAX_FILE_BYTES
from mrc.transfer.window import WINDOW_BYTES
from mrc.transfer.writing import CHUNK_BYTES

EXAMPLES = """\
examples:
  mrc recv                             files go to the current directory
  mrc recv --output inbox --overwrite  and replace what is there
  mrc recv --once --json               one sender, then the result as JSON
  mrc recv --json                      a line of JSON for each sender
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "recv", help="receive files from hosts that run mrc send", examples=EXAMPLES
    )
    parser.add_argument(
        "--output", default=".", metavar="DIR", help="where files go [the current directory]"
    )
    parser.add_argument("--once", action="store_true", help="end after the first sender")
    parser.add_argument(
        "--port",
        type=port_number,
        default=DEFAULT_PORT,
        help="TCP port to listen on; 0 lets the system choose [%(default)s]",
    )
    parser.add_argument(
        "--memory", type=_window_bytes, default=WINDOW_BYTES, metavar="BYTES",
        help="for what one sender has written and is not on disk yet: a long, fast way needs much,"
        f" any other a few chunks of 4M [{WINDOW_BYTES >> 20}M]",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")
    progress.add_option(parser)
    views.add_options(parser, listens=True)
    add_options(parser)
    parser.set_defaults(run=run)


def _window_bytes(text: str) -> int:
    length = byte_count(text)
    if not CHUNK_BYTES <= length <= 1 << 40:
        raise argparse.ArgumentTypeError(f"{text!r} is not within 4M..1T")
    return length


def run(args: argparse.Namespace) -> int:
    return run_async(_recv(args, Output.of(args)))


async def _recv(args: argparse.Namespace, out: Output) -> int:
    with (
        OutputDirectory(args.output, overwrite=args.overwrite) as directory,
        progress.ProgressMeter(out, "receiver", args.progress_json) as meter,
    ):
        swept = directory.sweep()
        if swept:
            out.note(f"removed {len(swept)} unfinished files of an mrc recv that was killed")
        about, joins = {"service": SERVICE.name}, Joins()
        async with (
            mrc.Context(mrc.ContextConfig(**views.settings(args))) as ctx,
            await ctx.listen(port=args.port, private=about, admit=joins.admit) as listener,
        ):
            views.announce(out, ctx)
            out.note(f"listening on TCP port {listener.port}, UDP port {ctx.udp_port}")
            server = _Server(ctx, listener, joins, directory, args.memory, out, meter)
            return await (server.serve_once() if args.once else server.serve_on())


class _Server:
    """Turns connected QPs into sessions, and their ends into lines and exit codes."""

    def __init__(
        self,
        ctx: Context,
        listener: Listener,
        joins: Joins,
        directory: OutputDirectory,
        window_bytes: int,
        out: Output,
        meter: progress.ProgressMeter,
    ) -> None:
        self._ctx = ctx
        self._listener = listener
        self._joins = joins
        self._directory = directory
        self._window_bytes = window_bytes
        self._out = out
        self._meter = meter

    async def serve_on(self) -> int:
        async with asyncio.TaskGroup() as sessions:
            async for qp in self._listener:
                sessions.create_task(self._serve(qp))
        return 0

    async def serve_once(self) -> int:
        others: set[asyncio.Task[None]] = set()
        try:
            async for qp in self._listener:
                if qp.private.get("service") == SERVICE.name:
                    self._joins.refusal = "this mrc recv --once has its sender already"
                    others.add(asyncio.create_task(self._take_joins()))
                    return await self._serve(qp)
                others.add(asyncio.create_task(let_look(qp)))
        finally:
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        return 0

    async def _take_joins(self) -> None:
        async for qp in self._listener:
            await self._joins.take(qp)

    async def _serve(self, qp: QP) -> int:
        """Whatever a peer comes for; returns the exit code of that. Raises nothing."""
        service = qp.private.get("service")
        try:
            if service == SERVICE.name:
                async with accept_session(self._ctx, qp, self._joins) as session:
                    await self._receive(session)
            elif service == JOIN:
                await self._joins.take(qp)
            else:
                await let_look(qp)
        except Exception as error:
            with self._meter.lines():
                return session_failed(self._out, qp.peer_host, error)
        return 0

    async def _receive(self, session: Session) -> None:
        files = []
        start = then = time.monotonic()
        total = session.qp.private.get("bytes")
        known_total = total if type(total) is int and 0 <= total <= MAX_FILE_BYTES else None
        async with self._meter.watch(session, f"from {session.qp.peer_host}", known_total):
            async for file in receive_files(
                session, self._directory, window_bytes=self._window_bytes
            ):
                files.append(file)
                now = time.monotonic()
                self._meter.text(file_line(file, now - then))
                then = now
            slow = slow_planes("receiver", (await session.query()).planes)
            self._meter.note(f"{session.qp.peer_host}: {slow}" if slow else "")
            port = self._listener.port
            self._out.result(await transfer_json("receiver", session, files, then - start, port))
