# SPDX-License-Identifier: Apache-2.0
"""The transfers that `mrc send` and `mrc recv` run, and what they print of them."""

from __future__ import annotations

import argparse
import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import mrc
from mrc.aio.context import Context
from mrc.aio.recording import Recorder
from mrc.cli import endpoint, figures
from mrc.cli.endpoint import Retry
from mrc.cli.main import STDOUT
from mrc.cli.output import Output, format_bytes, session_failed
from mrc.connect.parse import shown
from mrc.enums import EvState
from mrc.errors import MrcError
from mrc.mailbox import MAX_UNREAD
from mrc.transfer.cli.consent import Consents
from mrc.transfer.cli.failures import Failures
from mrc.transfer.cli.incidents import Incidents
from mrc.transfer.cli.progress import ProgressMeter
from mrc.transfer.cli.report import LeftOut, overflow, slow_planes, transfer, waits_sentence
from mrc.transfer.files import OutputDirectory
from mrc.transfer.limits import SenderLimits
from mrc.transfer.pack import Total
from mrc.transfer.pipes import PipeWriter
from mrc.transfer.plan import STDIN, SendPlan
from mrc.transfer.receiver import ReceiveEvents, receive_files
from mrc.transfer.sender import SendOptions, send_plan
from mrc.transfer.server import TransferServer, listen
from mrc.transfer.session import (
    TOKEN_BYTES,
    TransferSession,
    VerificationError,
    connect_session,
)
from mrc.units import counted, digits


async def send(
    args: argparse.Namespace, out: Output, plan: SendPlan, trusted: dict[str, Any]
) -> int:
    # Standard input cannot be read twice, and a code lets one peer in once.
    if STDIN in args.files or args.code or args.no_resume:
        args.retry = 0.0
    sending = SendCommand(args, out, plan, trusted)
    try:
        with Retry(args.retry, sending.meter.note, first=args.wait) as retry:
            while True:
                connected, before = False, plan.sent
                try:
                    async with sending.connected() as session:
                        connected = True
                        retry.connected()
                        return await sending.run(session, retry)
                except MrcError as error:
                    how = sending.how
                    progress = plan.sent > before or how.stored_chunks > how.kept_chunks
                    await retry.wait(error, connected=connected, progress=progress)
    except VerificationError:
        raise  # nothing is kept
    except (Exception, asyncio.CancelledError):
        if sending.how.stored_chunks and sending.how.resume and STDIN not in args.files:
            sending.meter.note("the same command goes on where this one stopped")
        raise


class SendCommand:
    """The transfer of one command, over one connection or several, one after the other."""

    def __init__(
        self, args: argparse.Namespace, out: Output, plan: SendPlan, trusted: dict[str, Any]
    ) -> None:
        self._args = args
        self._out = out
        self._plan = plan
        self._host, self._port = args.host
        self._config = mrc.ContextConfig(
            **endpoint.endpoint_settings(args), **endpoint.view_settings(args), **trusted
        )
        self._token = secrets.token_hex(TOKEN_BYTES) if args.retry else ""
        self._total = Total()
        self.meter = ProgressMeter(out, "sender")
        self._incidents = Incidents(self.meter.detail)
        self._failures = Failures(out, self.meter, "sender", self._host)
        for failed in plan.failed:
            self._failures.add(failed)
        self.how = SendOptions(
            keep_meta=not args.no_meta,
            update=args.update,
            rate=args.rate,
            resume=not args.no_resume,
            on_grew=self._grew,
            on_failed=self._failures.add,
            waiting=lambda: self.meter.waiting(self._host),
        )

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[TransferSession]:
        plan, host = self._plan, self._host
        plan.connected()
        async with (
            mrc.Context(self._config) as ctx,
            connect_session(
                ctx,
                host,
                self._port,
                announced=plan.announced(),
                transfer=self._token,
                timeout=self._args.timeout,
            ) as session,
            self.meter.watch(session, f"to {host}", plan.bytes, lambda: plan.there),
        ):
            carrying = {ev.plane for ev in await session.evs() if ev.state is EvState.GOOD}
            async with self._incidents.follow(session.qp, carrying):
                endpoint.announce(self._out, ctx)
                self.meter.detail(figures.parameters(ctx, session.qp))
                yield session

    def _grew(self, path: str) -> None:
        self.meter.note(f"{shown(path)}: grew while it was sent: copied as it was at the begin")

    async def run(self, session: TransferSession, retry: Retry) -> int:
        """Sends what is left; returns the exit code."""
        meter, out, plan = self.meter, self._out, self._plan
        self.how.on_resumed = lambda file, there: meter.resumed(
            session, file.name, there, file.bytes
        )
        await meter.files(send_plan(session, self._plan, self.how), self._total)
        if unchanged := self._plan.unchanged:
            were = "was" if unchanged == 1 else "were"
            meter.note(f"{counted(unchanged, 'file')} {were} there with the same size and date")
        slow = slow_planes("sender", (await session.query()).planes)
        meter.note(self._incidents.sentence(slow))
        meter.note_once(await overflow(session.ctx))
        meter.detail(waits_sentence(session.waiting.seconds()))
        if out.as_json:
            out.result(
                await transfer(
                    "sender",
                    session,
                    self._total,
                    self._port,
                    outages=self._incidents.outages,
                    waited_seconds=meter.waited_seconds,
                    left_out=LeftOut(len(plan.skipped), plan.excluded, plan.unchanged),
                    failed=self._failures.files,
                    failed_count=self._failures.count,
                    retries=retry.count,
                )
            )
        return self._failures.end()


async def recv(
    args: argparse.Namespace, out: Output, peer_bytes: int, trusted: dict[str, Any]
) -> int:
    """`peer_bytes`: memory for what all senders together have sent and is not stored."""
    config = mrc.ContextConfig(
        limits=mrc.Limits(max_peer_bytes=peer_bytes),
        queues=mrc.Queues(max_unread=MAX_UNREAD),
        **endpoint.endpoint_settings(args),
        **endpoint.view_settings(args),
        **trusted,
    )
    with _place(args, out) as place:
        async with mrc.Context(config) as ctx:
            command = RecvCommand(args, out, ctx, place)
            where = (args.bind, args.port)
            async with listen(ctx, command, command.limits, *where, once=args.once) as server:
                endpoint.announce(out, ctx)
                out.note(f"listening on TCP port {server.port}, UDP port {ctx.udp_port}")
                return await command.serve(server)


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
            named = ", ".join(shown(name) for name in swept[:3])
            more = f" and {counted(len(swept) - 3, 'other file')}" if len(swept) > 3 else ""
            out.note(f"removed what was left of {named}{more}")
        yield directory


class RecvCommand:
    """The user of the server of one command: prints what becomes of each transfer."""

    def __init__(
        self,
        args: argparse.Namespace,
        out: Output,
        ctx: Context,
        place: OutputDirectory | PipeWriter,
    ) -> None:
        self.out = out
        self.ctx = ctx
        self.place = place
        self.limits = SenderLimits(args.max_bytes, args.max_files, args.memory, args.idle)
        self.meter = ProgressMeter(out, "receiver")
        self.consents = Consents(ctx.config.security, self.meter, idle_seconds=args.idle)
        self._rate = args.rate  # of all senders, in bits per second; 0: no limit
        self._bin_ns = args.bins  # 0: without --bins
        self.recorder: Recorder | None = None
        self._stack = AsyncExitStack()
        self._server: TransferServer | None = None

    async def serve(self, server: TransferServer) -> int:
        """Serves until it is cancelled or the server has served whom it had to."""
        self._server, self.port = server, server.port
        async with self._stack:
            return await server.serve()

    def account(self, host: str) -> ReceivedTransfer:
        return ReceivedTransfer(self, host)

    def failed(self, host: str, error: Exception) -> int:
        with self.meter.lines():
            return session_failed(self.out, host, error)

    def may_return(self, host: str) -> None:
        idle = digits(self.limits.idle_seconds)
        self.meter.note(f"{shown(host)} may come back within {idle} s (--idle)")

    def rate(self) -> float:
        """The share of each sender, in bits per second."""
        senders = len(self._server.senders) if self._server is not None else 0
        return float(self._rate / max(senders, 1))

    async def begin_recording(self) -> None:
        """With --bins, starts with the first sender. Records all QPs: a sender may open more."""
        if self._bin_ns and self.recorder is None:
            self.recorder = self.ctx.record(width_ns=self._bin_ns)
            await self._stack.enter_async_context(self.recorder)


class ReceivedTransfer:
    """The account of one transfer, over all its connections."""

    def __init__(self, command: RecvCommand, host: str) -> None:
        self._command = command
        self._total = Total()
        most = command.limits.files
        self._failures = Failures(command.out, command.meter, "receiver", host, limit=most)

    @property
    def failed_count(self) -> int:
        return self._failures.count

    async def receive(self, session: TransferSession, on_data: Callable[[], None]) -> int:
        command, meter = self._command, self._command.meter
        consent = await command.consents.get(session)
        await command.begin_recording()
        incidents = Incidents(meter.detail)
        async with (
            meter.watch(session, f"from {session.qp.peer_host}", session.announced_bytes),
            incidents.follow(session.qp),
        ):
            meter.detail(figures.parameters(command.ctx, session.qp))
            received = receive_files(
                session,
                command.place,
                limits=command.limits,
                events=ReceiveEvents(
                    on_data=on_data,
                    on_resumed=partial(meter.resumed, session),
                    on_kept=self._on_kept,
                    on_failed=self._failures.add,
                    rate=command.rate,
                ),
                keep_names=command.out.as_json,
                agreed=consent.agreed,
            )
            await meter.files(received, self._total)
            await self._report(session, incidents, consent.seconds)
            return self._failures.end()

    def _on_kept(self, name: str, size: int) -> None:
        kept = f"{shown(name)}: {format_bytes(size)} are kept for 7 days"
        self._command.meter.note(f"{kept}; the same mrc send goes on from there")

    async def _report(
        self, session: TransferSession, incidents: Incidents, waited_seconds: float
    ) -> None:
        """Prints a session's lost or slow planes, its --bins and its JSON."""
        command, meter = self._command, self._command.meter
        story = incidents.sentence(slow_planes("receiver", (await session.query()).planes))
        meter.note(f"{session.qp.peer_host}: {story}" if story else "")
        meter.note_once(await overflow(command.ctx))
        meter.detail(waits_sentence(session.waiting.seconds()))
        recording = await command.recorder.stop() if command.recorder is not None else None
        if recording is not None:
            meter.text("\n".join(figures.bins_lines("receiver", recording)))
        if command.out.as_json:
            command.out.result(
                await transfer(
                    "receiver",
                    session,
                    self._total,
                    command.port,
                    recording,
                    incidents.outages,
                    waited_seconds=waited_seconds,
                    failed=self._failures.files,
                    failed_count=self._failures.count,
                )
            )
