# SPDX-License-Identifier: Apache-2.0
"""`mrc recv`: receives files from any number of senders at the same time."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, field

import mrc
from mrc.aio.context import Context
from mrc.aio.listener import Listener
from mrc.aio.qp import QP
from mrc.aio.recording import Recorder
from mrc.cli import endpoint, history_report, trust, views
from mrc.cli.arguments import add, bit_rate, count_argument, size_argument
from mrc.cli.consent import Consent, Consents
from mrc.cli.exits import UsageError
from mrc.cli.failures import Failures
from mrc.cli.incidents import Incidents
from mrc.cli.output import Output, add_options, format_bytes
from mrc.cli.progress import ProgressMeter
from mrc.cli.report import overflow, slow_planes, transfer, waits_sentence
from mrc.cli.runner import run_async
from mrc.cli.serving import session_failed, until_guessed
from mrc.cli.standard import STDOUT
from mrc.connect.parse import shown
from mrc.errors import PathError, PeerGoneError
from mrc.mailbox import MAX_UNREAD, let_look
from mrc.tasks import cancelled
from mrc.transfer.files import OutputDirectory
from mrc.transfer.memory import WINDOW_BYTES
from mrc.transfer.messages import CHUNK_BYTES, MAX_FILE_BYTES
from mrc.transfer.pack import Total
from mrc.transfer.pipes import PipeWriter
from mrc.transfer.receiver import ReceiveEvents, receive_files
from mrc.transfer.session import (
    JOIN,
    SERVICE,
    TOKEN_BYTES,
    TRANSFER,
    Joins,
    TransferError,
    TransferSession,
    accept_session,
)
from mrc.transfer.sinks import DEFAULTS, SenderLimits
from mrc.trust.security import Commands
from mrc.units import counted, digits

HELP = "receive files and folders from hosts that run mrc send"
EXAMPLES = """\
examples:
  mrc recv --output inbox              store files in the folder inbox; asks once about each sender
                                       (y: until it ends, always: in ~/.config/mrc/allowed)
  mrc recv --output inbox --code       print a one-time code, with which one sender may send;
                                       exit after it
  mrc recv --output inbox --overwrite  replace existing files
  mrc recv --output inbox --once       exit after one sender
  mrc recv --stdout | tar x            pass on the bytes of one sender
  mrc recv --once --bins               chart goodput in bins of 10 ms
  mrc recv --output inbox -B eth1 --udp-port 4800
                                       on one interface, and a UDP port for the firewall
  mrc recv --output inbox --json       print one line of JSON for each sender
"""
DEFAULT_BIN = "10ms"
WINDOWS = 8  # all senders together have memory for 8 full windows; more senders get smaller ones
MAX_LOST = 64  # transfers whose account is kept after a loss: their senders may come back
_TAKEN = "this mrc recv --once already serves another sender"
WHERE = """
--output DIR  folder for the files, made if it is missing; required without a terminal and in your
              home directory [the current directory]
--stdout      write the bytes of one sender's files to standard output, one file after the other,
              and exit; each chunk is verified before it is written
--once        exit after serving one sender: the first whose data arrives
"""
HOW = """
--overwrite  replace existing files
--no-meta    do not take mode and modification time from the sender (setuid, setgid and sticky bits
             never)
--no-resume  keep no file of a transfer that is interrupted, and remove what was kept
--fsync      sync each file and its folder to the disk before the sender is told that it is stored
             [a host that loses power may lose the files of the last half minute]
"""
LIMITS = f"""
--any-name         also accept file names that begin with '.' or '-' or contain control characters
--max-bytes BYTES  most bytes of all files of one sender together [{DEFAULTS.bytes >> 40}T]
--max-files COUNT  most files and folders of one sender [%(default)s]
--rate RATE        all senders together send at most at this rate, such as 20mbit: each file of one
                   gets its share when it begins [no limit]
--idle SECONDS     disconnect a sender that makes no progress for this time; its standard input may
                   pause [%(default)g]
--memory BYTES     buffer for one sender's data until it is on disk: long-distance, fast paths need
                   all of it, others a few chunks of 4M; all senders together get {WINDOWS} times
                   this [{WINDOW_BYTES >> 20}M]
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, WHERE)
    endpoint.add_listening(parser, "TCP port to listen on; 0: the system chooses one")
    endpoint.add_options(parser)
    endpoint.add_engines(parser)
    trust.add_options(parser, listens=True, connects=False)
    add(parser, HOW)
    add(
        parser.add_argument_group("limits (anybody who can reach the port can send)"),
        LIMITS,
        max_bytes={"default": DEFAULTS.bytes},
        max_files={"type": count_argument(1 << 40, "a number of files"), "default": DEFAULTS.files},
        rate={"type": bit_rate, "default": 0.0},
        idle={"default": DEFAULTS.idle_seconds},
        memory={"type": _window_bytes, "default": WINDOW_BYTES},
    )
    history_report.add_option(
        parser,
        DEFAULT_BIN,
        "with --once: show the bytes received in each bin of this width, and the longest gap",
    )
    views.add_options(parser, listens=True)
    add_options(parser)


def _window_bytes(text: str) -> int:
    length = size_argument(text)
    if not CHUNK_BYTES <= length <= 1 << 40:
        raise argparse.ArgumentTypeError(f"{text!r} is not within 4M..1T")
    return length


def run(args: argparse.Namespace) -> int:
    args.once = args.once or args.stdout
    if args.bins and not args.once:
        raise UsageError(args.prog, f"--bins: requires --once; see {args.prog} --help")
    if args.stdout:
        for option in ("output", "json", "overwrite", "any_name", "fsync"):
            if getattr(args, option):
                wrong = f"--stdout: not with --{option.replace('_', '-')}"
                raise UsageError(args.prog, f"{wrong}; see {args.prog} --help")
    out = Output.of(args, stdout_is_data=args.stdout)
    if args.output:
        _make(args.output, out)
    elif not args.stdout:
        args.output = _current_folder(args.prog)
    commands = Commands("mrc recv", f"mrc send FILE {trust.this_host(args.port)}")
    return run_async(_recv(args, out, trust.listening(args, out, commands, asks=True)))


def _make(folder: str, out: Output) -> None:
    """Makes the folder, and those above it, unless it exists."""
    path = Path(folder)
    if not path.exists() and not path.is_symlink():
        path.mkdir(parents=True)
        out.note(f"made the folder {folder}")


def _current_folder(prog: str) -> str:
    """The folder for files without --output: the current directory, but only on a terminal, where
    the user sees the files arrive, and never the home directory.

    Anybody who can reach the port chooses the file names, and a home directory contains files that
    programs execute.
    """
    if not sys.stdin.isatty():
        raise UsageError(prog, f"name the folder for the files: --output DIR; see {prog} --help")
    home = Path("~").expanduser()  # stays "~" where there is none
    if home.exists() and home.samefile("."):
        wrong = "the current directory is your home: name another folder: --output DIR"
        raise UsageError(prog, f"{wrong}; see {prog} --help")
    return "."


def _named(files: list[str]) -> str:
    """A few of the files, and how many there are."""
    first = ", ".join(shown(name) for name in files[:3])
    return first if len(files) <= 3 else f"{first} and {counted(len(files) - 3, 'other file')}"


def _config(args: argparse.Namespace, trusted: dict[str, Any]) -> mrc.ContextConfig:
    peers = WINDOWS * args.memory
    return mrc.ContextConfig(
        limits=mrc.Limits(max_peer_bytes=peers),
        queues=mrc.Queues(max_unread=MAX_UNREAD),
        **endpoint.settings(args),
        **views.settings(args),
        **trusted,
    )


@contextmanager
def _place(args: argparse.Namespace, out: Output) -> Iterator[OutputDirectory | PipeWriter]:
    """Where the files go: a folder, or standard output."""
    if args.stdout:
        with PipeWriter(STDOUT) as pipe:
            yield pipe
        return
    with OutputDirectory(
        args.output,
        overwrite=args.overwrite,
        any_name=args.any_name,
        keep_meta=not args.no_meta,
        resume=not args.no_resume,
        fsync=args.fsync,
    ) as directory:
        if swept := directory.sweep():
            out.note(f"removed what was left of {_named(swept)}")
        yield directory


async def _recv(args: argparse.Namespace, out: Output, trusted: dict[str, Any]) -> int:
    with _place(args, out) as place:
        about, joins = {"service": SERVICE.name}, Joins()
        limits = SenderLimits(args.max_bytes, args.max_files, args.memory, args.idle)
        async with (
            mrc.Context(_config(args, trusted)) as ctx,
            await ctx.listen(args.bind, args.port, private=about, admit=joins.admit) as listener,
        ):
            views.announce(out, ctx)
            out.note(f"listening on TCP port {listener.port}, UDP port {ctx.udp_port}")
            server = _Server(
                ctx,
                listener,
                joins,
                place,
                limits,
                out,
                once=args.once,
                bin_ns=args.bins,
                rate=args.rate,
            )
            return await server.serve()


class Account(Struct):
    """What has become of a transfer, over all its connections."""

    failures: Failures
    total: Total = field(default_factory=Total)


@dataclass(eq=False)
class _Server:
    """Serves connected QPs as sessions, and reports the result or error of each session."""

    ctx: Context
    listener: Listener
    joins: Joins
    place: OutputDirectory | PipeWriter
    limits: SenderLimits
    out: Output
    once: bool
    bin_ns: int  # 0: without --bins
    rate: float  # of all senders, in bits per second; 0: no limit

    def __post_init__(self) -> None:
        self._meter = ProgressMeter(self.out, "receiver")
        security = self.ctx.config.security
        self._consents = Consents(security, self._meter, idle_seconds=self.limits.idle_seconds)
        self._recorder: Recorder | None = None
        self._stack = AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self._senders: set[asyncio.Task[None]] = set()
        self._chosen: asyncio.Task[None] | None = (
            None  # with --once, the task whose data came first
        )
        self._accounts: dict[str, Account] = {}  # of transfers that run, or may go on
        self._last: int | None = None  # exit code of the sender that ended last
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def serve(self) -> int:
        """Serves until it is cancelled; with --once until the chosen sender has been served, with
        --code until the one peer has been.
        """
        accepting = asyncio.create_task(self._accept())
        guessing = asyncio.create_task(until_guessed(self.ctx))
        async with self._stack:
            try:
                ends = (accepting, guessing, self._code)
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if guessing.done() and guessing.exception() is not None:
                    raise guessing.exception() or AssertionError
            finally:
                await cancelled(accepting, guessing, *self._tasks)
        return self._code.result() if self._code.done() else 0

    async def _accept(self) -> None:
        async for qp in self.listener:
            task = asyncio.create_task(self._serve(qp))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, qp: QP) -> None:
        """Serves the service that the peer requested. Raises nothing: sessions are independent."""
        task = asyncio.current_task()
        assert task is not None
        code, transfer, returns = 0, "", False
        try:
            match qp.private.get("service"):
                case SERVICE.name:
                    self._senders.add(task)
                    transfer = await self._take_over(qp, task)
                    account = self._account(transfer, qp.peer_host)
                    code = await self._serve_sender(qp, partial(self._on_data, task), account)
                    self._accounts.pop(transfer, None)
                case service if service == JOIN:
                    await self.joins.take(qp)
                case _:
                    await let_look(qp)
        except Exception as error:
            with self._meter.lines():
                code = session_failed(self.out, qp.peer_host, error)
            returns = isinstance(error, PathError) and transfer != ""
            if not isinstance(error, (PathError, PeerGoneError)):
                self._accounts.pop(transfer, None)
        finally:
            self._senders.discard(task)
        if self._chosen is task and returns:
            await self._until_returned(qp.peer_host)
        self._last = code if qp.private.get("service") == SERVICE.name else self._last
        if self._chosen is task or (self._tasks == {task} and self.ctx._is_closed):
            self._end(code if self._chosen is task else self._last)

    def _end(self, code: int | None) -> None:
        """Ends the server with an exit code. None: the one peer of --code was no sender."""
        if self._code.done():
            return
        if code is None:
            used = (
                "the one peer of the one-time code sent nothing: mrc recv --code prints a new one"
            )
            self._code.set_exception(TransferError(used))
        else:
            self._code.set_result(code)

    async def _take_over(self, qp: QP, task: asyncio.Task[None]) -> str:
        """The name of the sender's transfer. Ends an earlier session of this transfer, which may
        not know yet that its paths are lost.
        """
        transfer = qp.private.get(TRANSFER)
        if not isinstance(transfer, str) or not 0 < len(transfer) <= 2 * TOKEN_BYTES:
            return ""
        transfers = self.joins.transfers
        before = transfers.get(transfer)
        transfers[transfer] = task
        task.add_done_callback(
            lambda _: transfers.get(transfer) is task and transfers.pop(transfer)
        )
        if before is not None:
            if before is self._chosen:
                self._chosen = task
            await cancelled(before)
        return transfer

    def _account(self, transfer: str, host: str) -> Account:
        """The account of this transfer. Those of others are kept for a while after a loss."""
        if transfer in self._accounts:
            return self._accounts[transfer]
        lost = {
            name: account.failures.count
            for name, account in self._accounts.items()
            if name not in self.joins.transfers
        }
        while len(lost) >= MAX_LOST or sum(lost.values()) > self.limits.files:
            one = next(iter(lost)) if len(lost) >= MAX_LOST else max(lost, key=lost.__getitem__)
            del self._accounts[one], lost[one]
        failures = Failures(self.out, self._meter, "receiver", host, limit=self.limits.files)
        account = Account(failures)
        if transfer:
            self._accounts[transfer] = account
        return account

    async def _until_returned(self, host: str) -> None:
        """With --once: the sender may connect again and go on."""
        seconds = self.limits.idle_seconds
        self._meter.note(f"{shown(host)} may come back within {digits(seconds)} s (--idle)")
        await asyncio.sleep(seconds)

    def _on_data(self, sender: asyncio.Task[None]) -> None:
        """Called when data of a sender's file arrives. With --once the first caller is chosen."""
        if not self.once or self._chosen is sender:
            return
        if self._chosen is not None:
            raise TransferError(_TAKEN)
        self._chosen, self.joins.refusal = sender, _TAKEN
        for other in self._senders - {sender}:
            other.cancel()

    async def _serve_sender(self, qp: QP, on_data: Callable[[], None], account: Account) -> int:
        """Receives all files of one sender; returns the exit code."""
        async with accept_session(self.ctx, qp, self.joins) as session:
            consent = await self._consents.get(session)
            await self._begin_recording()
            return await self._receive(session, on_data, consent, account)

    async def _begin_recording(self) -> None:
        """With --bins, starts with the first sender. Records all QPs: a sender may open more."""
        if self.bin_ns and self._recorder is None:
            self._recorder = self.ctx.record(width_ns=self.bin_ns)
            await self._stack.enter_async_context(self._recorder)

    async def _receive(
        self,
        session: TransferSession,
        on_data: Callable[[], None],
        consent: Consent,
        account: Account,
    ) -> int:
        size = session.qp.private.get("bytes")
        known_total = size if type(size) is int and 0 <= size <= MAX_FILE_BYTES else None
        incidents = Incidents(self._meter.detail)
        failures, total = account.failures, account.total
        async with (
            self._meter.watch(session, f"from {session.qp.peer_host}", known_total),
            incidents.follow(session.qp),
        ):
            self._meter.detail(endpoint.parameters(self.ctx, session.qp))
            received = receive_files(
                session,
                self.place,
                limits=self.limits,
                events=ReceiveEvents(
                    on_data=on_data,
                    on_resumed=partial(self._meter.resumed, session),
                    on_kept=self._on_kept,
                    on_failed=failures.add,
                    rate=lambda: self.rate / max(len(self._senders), 1),
                ),
                keep_names=self.out.as_json,
                agreed=consent.agreed,
            )
            await self._meter.files(received, total)
            await self._report(session, incidents, total, consent.seconds, failures)
            return failures.end()

    def _on_kept(self, name: str, size: int) -> None:
        kept = f"{shown(name)}: {format_bytes(size)} are kept for 7 days"
        self._meter.note(f"{kept}; the same mrc send goes on from there")

    async def _report(
        self,
        session: TransferSession,
        incidents: Incidents,
        total: Total,
        waited_seconds: float,
        failures: Failures,
    ) -> None:
        """Prints a session's lost or slow planes, its --bins and its JSON."""
        story = incidents.sentence(slow_planes("receiver", (await session.query()).planes))
        self._meter.note(f"{session.qp.peer_host}: {story}" if story else "")
        self._meter.note_once(await overflow(self.ctx))
        self._meter.detail(waits_sentence(session.waiting.seconds()))
        recording = await self._recorder.stop() if self._recorder is not None else None
        if recording is not None:
            self._meter.text("\n".join(history_report.bins_lines("receiver", recording)))
        if self.out.as_json:
            port = self.listener.port
            self.out.result(
                await transfer(
                    "receiver",
                    session,
                    total,
                    port,
                    recording,
                    incidents.outages,
                    waited_seconds=waited_seconds,
                    failed=failures.files,
                    failed_count=failures.count,
                )
            )
