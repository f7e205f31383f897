# SPDX-License-Identifier: Apache-2.0
"""The transfers that `mrc send` and `mrc recv` run, and what they print of them."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from msgspec import Struct

import mrc
from mrc import mailbox
from mrc.aio.context import Context
from mrc.cli import endpoint, figures
from mrc.cli.output import Output
from mrc.connect.identity import AllowedPeers
from mrc.connect.parse import shown
from mrc.connect.security import Security
from mrc.enums import EvState
from mrc.errors import MrcError
from mrc.transfer.cli.report import Incidents, ProgressMeter, TransferReport
from mrc.transfer.files import OutputDirectory
from mrc.transfer.limits import SenderLimits
from mrc.transfer.messages import Announced
from mrc.transfer.plan import STDIN, SendPlan
from mrc.transfer.receiver import ReceiveEvents, receive_files
from mrc.transfer.sender import SendOptions, send_plan
from mrc.transfer.session import (
    SERVICE,
    TOKEN_BYTES,
    TransferServer,
    TransferSession,
    VerificationError,
    agreement,
    connect_session,
    refuse,
)
from mrc.transfer.sinks import PipeWriter
from mrc.units import counted, digits, scaled


async def send(
    args: argparse.Namespace, out: Output, plan: SendPlan, trusted: dict[str, Any]
) -> int:
    # Standard input cannot be read twice, and a code lets one peer in once.
    if STDIN in args.files or args.code or args.no_resume:
        args.retry = 0.0
    sending = SendCommand(args, out, plan, trusted)
    try:
        with endpoint.Retry(args.retry, sending.meter.note, first=args.wait) as retry:
            while True:
                connected, before = False, plan.sent
                try:
                    async with sending.connected() as session:
                        connected = True
                        retry.connected()
                        return await sending.run(session, retry.count)
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
        self.meter = ProgressMeter(out, "sender")
        self._incidents = Incidents(self.meter.detail)
        self._report = TransferReport(self.meter, self._host)
        for failed in plan.failed:
            self._report.left_out(failed)
        self.how = SendOptions(
            keep_meta=not args.no_meta,
            update=args.update,
            rate=args.rate,
            resume=not args.no_resume,
            on_grew=lambda path: self.meter.note(
                f"{shown(path)}: grew while it was sent: copied as it was at the begin"
            ),
            on_failed=self._report.left_out,
            waiting=lambda: self.meter.waiting(self._host),
        )

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[TransferSession]:
        plan, host = self._plan, self._host
        plan.connected()
        async with (
            mrc.open(self._config) as ctx,
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

    async def run(self, session: TransferSession, retries: int) -> int:
        """Sends what is left; returns the exit code."""
        meter, plan = self.meter, self._plan
        self.how.on_resumed = lambda file, there: meter.resumed(
            session, file.name, there, file.bytes
        )
        await meter.files(send_plan(session, plan, self.how), self._report.total)
        if plan.unchanged:
            were = "was" if plan.unchanged == 1 else "were"
            files = counted(plan.unchanged, "file")
            meter.note(f"{files} {were} there with the same size and date")
        await self._report.show(
            session,
            self._port,
            self._incidents,
            waited_seconds=meter.waited_seconds,
            skipped=len(plan.skipped),
            excluded=plan.excluded,
            unchanged=plan.unchanged,
            retries=retries,
        )
        return self._report.end()


async def recv(
    args: argparse.Namespace, out: Output, peer_bytes: int, trusted: dict[str, Any]
) -> int:
    """`peer_bytes`: memory for what all senders together have sent and is not stored."""
    config = mrc.ContextConfig(
        limits=mrc.Limits(max_peer_bytes=peer_bytes),
        queues=mrc.Queues(max_unread=mailbox.MAX_UNREAD),
        **endpoint.endpoint_settings(args),
        **endpoint.view_settings(args),
        **trusted,
    )
    with _place(args, out) as place:
        async with mrc.open(config) as ctx:
            server = RecvCommand(args, out, ctx, place)
            private, admit = {"service": SERVICE.name}, server.joins.admit
            async with ctx.listen(args.bind, args.port, private=private, admit=admit) as listener:
                endpoint.announce(out, ctx)
                out.note(f"listening on TCP port {listener.port}, UDP port {ctx.udp_port}")
                return await server.serve(listener)


@contextmanager
def _place(args: argparse.Namespace, out: Output) -> Iterator[OutputDirectory | PipeWriter]:
    """Where the files go: a folder, or standard output."""
    if args.stdout:
        with PipeWriter(1) as pipe:
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


class RecvCommand(TransferServer):
    """The server of one command: prints what becomes of each transfer."""

    def __init__(
        self,
        args: argparse.Namespace,
        out: Output,
        ctx: Context,
        place: OutputDirectory | PipeWriter,
    ) -> None:
        limits = SenderLimits(args.max_bytes, args.max_files, args.memory, args.idle)
        super().__init__(ctx, limits, once=args.once)
        self.out = out
        self.place = place
        self.meter = ProgressMeter(out, "receiver")
        self.consents = Consents(ctx.config.security, self.meter, idle_seconds=args.idle)
        self._rate = args.rate  # of all senders, in bits per second; 0: no limit
        self._bin_ns = args.bins  # 0: without --bins
        self.recorder: mrc.Recorder | None = None
        self._stack = AsyncExitStack()

    async def serve(self, listener: mrc.Listener) -> int:
        self.port = listener.port
        async with self._stack:
            return await super().serve(listener)

    def account(self, host: str) -> ReceivedTransfer:
        return ReceivedTransfer(self, host)

    def failed(self, host: str, error: Exception) -> int:
        with self.meter.lines():
            return self.out.session_failed(host, error)

    def may_return(self, host: str) -> None:
        idle = digits(self.limits.idle_seconds)
        self.meter.note(f"{shown(host)} may come back within {idle} s (--idle)")

    def rate(self) -> float:
        """The share of each sender, in bits per second."""
        return float(self._rate / max(len(self.senders), 1))

    async def begin_recording(self) -> None:
        """With --bins, starts with the first sender. Records all QPs: a sender may open more."""
        if self._bin_ns and self.recorder is None:
            recording = self.ctx.record(width_ns=self._bin_ns)
            self.recorder = await self._stack.enter_async_context(recording)


class ReceivedTransfer:
    """The account of one transfer, over all its connections."""

    def __init__(self, command: RecvCommand, host: str) -> None:
        self._command = command
        self._report = TransferReport(command.meter, host, limit=command.limits.files)

    @property
    def failed_count(self) -> int:
        return self._report.failed_count

    async def receive(self, session: TransferSession, on_data: Callable[[], None]) -> int:
        command, meter, host = self._command, self._command.meter, session.qp.peer.host
        consent = await command.consents.get(session)
        await command.begin_recording()
        incidents = Incidents(meter.detail)
        async with (
            meter.watch(session, f"from {host}", session.announced_bytes),
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
                    on_kept=lambda name, size: meter.note(
                        f"{shown(name)}: {scaled(size, 'B')} are kept for 7 days; the same mrc send"
                        " goes on from there"
                    ),
                    on_failed=self._report.left_out,
                    rate=command.rate,
                ),
                keep_names=command.out.as_json,
                agreed=consent.agreed,
            )
            await meter.files(received, self._report.total)
            await self._report.show(
                session,
                command.port,
                incidents,
                about=f"{host}: ",
                recording=await command.recorder.stop() if command.recorder is not None else None,
                waited_seconds=consent.seconds,
            )
            return self._report.end()


# ---- Whom the user at the terminal lets send -----------------------------------------------------
#
# Consent holds for a key that the sender has proved, never for a name or an address: "y" until the
# command ends, "always" also later. A sender who has proved no key is asked about each time. What
# the question shows is all that the transfer may store.


_YES = ("y", "yes")
_NAMES = 3  # that a question shows
_NAME_CHARACTERS = 32
_BUSY = "its user is asked about another transfer from this address: try again afterwards"


class Consent(Struct, frozen=True):
    """An answer. `agreed`: what it covers; None: whatever comes, from somebody who is trusted."""

    seconds: float = 0.0
    """from the offer to the answer"""
    agreed: Announced | None = None


class Consents:
    """Asks about senders, one question at a time."""

    def __init__(
        self, security: Security | None, meter: ProgressMeter, *, idle_seconds: float
    ) -> None:
        self._security = security
        self._meter = meter
        self._idle_seconds = idle_seconds
        self._turn = asyncio.Lock()
        self._given: set[str] = set()  # fingerprints, until the command ends
        self._open: dict[str, str] = {}  # by address: who the open question is about

    async def get(self, session: TransferSession) -> Consent:
        """What the user agreed to; raises TransferError if that is nothing.

        One question about each address is open at a time: a stranger with many keys cannot keep
        the user busy.
        """
        if self._security is None or not self._security.allow_any or self._has(session):
            return Consent()
        address, who = session.qp.peer.address, session.qp.peer.identity
        if address in self._open and not (_is_key(who) and self._open[address] == who):
            await refuse(session, _BUSY, f"refused another sender at {address}: a question is open")
        first = address not in self._open
        self._open.setdefault(address, who)
        try:
            start = time.monotonic()
            answered = await agreement(session, self._answer, self._idle_seconds)
            return Consent(time.monotonic() - start, answered.agreed)
        finally:
            if first:
                del self._open[address]

    def _has(self, session: TransferSession) -> bool:
        who = session.qp.peer.identity
        return _is_key(who) and (who in self._given or who in AllowedPeers())

    async def _answer(self, session: TransferSession, announced: Announced) -> Consent | None:
        """None: no."""
        async with self._turn:
            if self._has(session):  # from the answer to another session of this sender
                return Consent()
            with self._meter.lines():
                answer = await endpoint.ask(_question(session, announced))
            yes = answer in _YES
            if _is_key(who := session.qp.peer.identity):
                yes = self._remember(who, session.qp.peer.address, answer)
            return Consent(agreed=announced) if yes else None

    def _remember(self, who: str, address: str, answer: str) -> bool:
        """What the answer about a proved key means, also for later."""
        if answer == "always":
            peers = AllowedPeers()
            try:
                peers.add(who, f"{address}, {datetime.now(UTC):%Y-%m-%d}")
            except OSError as error:
                why = (error.strerror or str(error)).lower()
                self._meter.note(f"{peers.path}: {why}: the answer counts until this command ends")
            else:
                self._meter.note(f"{peers.path} has {who} now: remove that line to be asked again")
                return True
        elif answer in _YES:
            self._meter.note(f"no further question about {who} until this command ends")
        else:
            return False
        self._given.add(who)
        return True


def _is_key(identity: str) -> bool:
    with suppress(ValueError):
        return bool(AllowedPeers.fingerprint(identity))
    return False


def _question(session: TransferSession, announced: Announced) -> str:
    """Who it is comes first; what a peer chose itself is quoted, and short."""
    qp = session.qp
    proved = qp.peer.identity or "no key"
    choices = "[y/N/always]" if _is_key(proved) else "[y/N]"
    called = shown(qp.peer.name, _NAME_CHARACTERS, quoted=True)
    who = f"{proved} at {qp.peer.address}, called {called},"
    return f"{who} offers {_what(announced)}: accept? {choices} "


def _what(announced: Announced) -> str:
    files, size = announced.files, announced.bytes
    what = "files" if files is None else "a file" if files == 1 else counted(files, "file")
    if folders := announced.folders:
        what += " and " + ("a folder" if folders == 1 else counted(folders, "folder"))
    what += f", {'of unknown size' if size is None else scaled(size, 'B')}"
    names = ", ".join(
        shown(name, _NAME_CHARACTERS, quoted=True) for name in announced.names[:_NAMES]
    )
    more = announced.more + len(announced.names[_NAMES:])
    return what + (f": {names}" if names else "") + (f" and {more} more" if more else "")
