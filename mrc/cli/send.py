# SPDX-License-Identifier: Apache-2.0
"""`mrc send FILE... HOST[:PORT]`: sends files and folders to a host that runs `mrc recv`."""

from __future__ import annotations

import argparse
import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mrc
from mrc.cli import endpoint, trust, views
from mrc.cli.address import DEFAULT_PORT
from mrc.cli.arguments import add, bit_rate, pause_argument
from mrc.cli.exits import UsageError
from mrc.cli.failures import Failures
from mrc.cli.incidents import Incidents
from mrc.cli.output import Output, add_options
from mrc.cli.progress import ProgressMeter
from mrc.cli.report import LeftOut, overflow, slow_planes, transfer, waits_sentence
from mrc.cli.retry import WAIT, Retry
from mrc.cli.runner import run_async
from mrc.connect.parse import shown
from mrc.enums import EvState
from mrc.errors import MrcError
from mrc.transfer.names import FileError, check_path
from mrc.transfer.pack import Total
from mrc.transfer.plan import STDIN, SendPlan, excluding, plan_of
from mrc.transfer.sender import SendOptions, send_plan
from mrc.transfer.session import TOKEN_BYTES, TransferSession, VerificationError, connect_session
from mrc.units import counted

HELP = "send files and folders to a host that runs mrc recv"
EXAMPLES = """\
examples:
  mrc send a.bin h1                    send to mrc recv on h1
  mrc send a.bin b.bin h1:7000         mrc recv listens on TCP port 7000
  mrc send a.bin '[2001:db8::1]:7000'
  mrc send -B eth1 -B eth2 a.bin h1    use only these two interfaces
  mrc send photos notes.txt h1         a folder with all below it, and a file
  mrc send photos/. h1                 only what the folder holds
  mrc send --exclude '*.o' src h1      without what matches
  tar c . | mrc send - h1 --name x.tar the bytes of a pipe, as x.tar
  mrc send a.bin h1 --code             ask for the code that mrc recv --code prints on h1
  mrc send --json a.bin h1 | jq .planes
"""
OPTIONS = f"""
files FILE...      file or folder to send, of any size; - for standard input; a trailing / makes no
                   difference, and a folder's /. means only what it holds
host HOST[:PORT]   host that runs mrc recv [TCP port {DEFAULT_PORT}]
--timeout SECONDS  time limit for connecting [%(default)s]
--retry SECONDS    when the connection is lost, try for this time to connect again, and go on; 0:
                   end at once, as with -, --code and --no-resume [%(default)g]
--no-resume        send everything again, whatever the receiver has kept of an interrupted transfer
"""
CHOICE = """
--name NAME           name at the receiver of the only FILE [its own name; of -: stdin]
--follow              below folders, send the files and folders that symbolic links lead to [skip
                      links]
--links               below folders, keep symbolic links that lead to a place in the same folder
--exclude PATTERN...  leave out what matches below the folders: '*.o', 'build/', '/top', '!keep.o',
                      in the syntax of .gitignore; repeatable
--rate RATE           send at most at this rate, such as 20mbit [no limit]
--update              skip files that the receiver has with the same size and modification time
--no-meta             leave mode and modification time to the receiver; owners are never kept, and
                      hard links become files of their own
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    retry = {"type": pause_argument, "default": 60.0}
    add(parser, OPTIONS, timeout={"default": 5.0}, retry=retry)
    add(parser, WAIT, wait={"type": pause_argument, "default": 0.0})
    endpoint.add_options(parser)
    endpoint.add_engines(parser)
    trust.add_options(parser, listens=False)
    add(parser, CHOICE, name={"type": _name}, rate={"type": bit_rate, "default": 0.0})
    views.add_options(parser, listens=False)
    add_options(parser)


def run(args: argparse.Namespace) -> int:
    if args.name and len(args.files) != 1:
        raise UsageError(args.prog, f"--name: requires exactly one FILE; see {args.prog} --help")
    if args.update and args.no_meta:
        raise UsageError(args.prog, f"--update: not with --no-meta; see {args.prog} --help")
    if args.files.count(STDIN) > 1:
        raise UsageError(args.prog, f"-: names standard input twice; see {args.prog} --help")
    out = Output.of(args)
    try:
        exclude = excluding(args.exclude) if args.exclude else lambda path: False
    except ValueError as error:
        raise UsageError(args.prog, f"--exclude: {error}; see {args.prog} --help") from None
    if args.links and args.follow:
        raise UsageError(args.prog, f"--links: not with --follow; see {args.prog} --help")
    plan = plan_of(
        args.files, name=args.name or "", follow=args.follow, links=args.links, exclude=exclude
    )
    if plan.excluded:
        out.note(f"--exclude left out {plan.excluded} of the files and folders")
    if plan.skipped:
        out.note(f"skipped {_counted(plan.skipped)}")
    return run_async(_send(args, out, plan, _trusted(args)))


def _trusted(args: argparse.Namespace) -> dict[str, Any]:
    return trust.connecting(args, *args.host, peer_runs="mrc recv", what=" FILE")


def _name(text: str) -> str:
    try:
        check_path(text)
    except FileError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _counted(skipped: list[str]) -> str:
    """What was skipped below the folders, in one line."""
    first = f"{skipped[0]}; --follow sends what symbolic links lead to, --links some as links"
    return f"{counted(len(skipped), 'file')}{'; the first' * (len(skipped) > 1)}: {first}"


async def _send(
    args: argparse.Namespace, out: Output, plan: SendPlan, trusted: dict[str, Any]
) -> int:
    # Standard input cannot be read twice, and a code lets one peer in once.
    if STDIN in args.files or args.code or args.no_resume:
        args.retry = 0.0
    sending = _Sending(args, out, plan, trusted)
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


class _Sending:
    """The transfer of one command, over one connection or several, one after the other."""

    def __init__(
        self, args: argparse.Namespace, out: Output, plan: SendPlan, trusted: dict[str, Any]
    ) -> None:
        self._args = args
        self._out = out
        self._plan = plan
        self._host, self._port = args.host
        self._config = mrc.ContextConfig(
            **endpoint.settings(args), **views.settings(args), **trusted
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
                views.announce(self._out, ctx)
                self.meter.detail(endpoint.parameters(ctx, session.qp))
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
