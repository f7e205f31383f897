# SPDX-License-Identifier: Apache-2.0
"""The transfers that `mrc send` and `mrc recv` run, and whom the user at the terminal lets send."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import asdict

import mrc
from mrc.cli import endpoint
from mrc.cli.output import Output
from mrc.connect.identity import AllowedPeers
from mrc.connect.parse import shown
from mrc.transfer.cli.report import TransferReport, exit_code
from mrc.transfer.client import SendArguments
from mrc.transfer.client import send as send_files
from mrc.transfer.server import receive
from mrc.transfer.session import Offered, TransferError
from mrc.units import counted, digits, scaled


def config_of(args: argparse.Namespace, trusted: dict[str, Any]) -> mrc.ContextConfig:
    return mrc.ContextConfig(
        **endpoint.endpoint_settings(args), **endpoint.view_settings(args), **trusted
    )


async def send(out: Output, arguments: SendArguments, config: mrc.ContextConfig) -> int:
    """Returns the exit code."""
    with TransferReport(out, "sender") as report:
        result = await send_files(
            **asdict(arguments), config=config, list_files=out.as_json, on_progress=report.take
        )
    return exit_code(result)


async def recv(args: argparse.Namespace, out: Output, trusted: dict[str, Any]) -> int:
    """Returns the exit code of the sender that ended last."""
    config, code = config_of(args, trusted), 0
    with TransferReport(out, "receiver") as report:
        asks = config.security is not None and config.security.allow_any
        async with receive(
            1 if args.stdout else args.output,
            port=args.port,
            bind=args.bind,
            once=args.once,
            overwrite=args.overwrite,
            any_name=args.any_name,
            no_meta=args.no_meta,
            no_resume=args.no_resume,
            fsync=args.fsync,
            max_bytes=args.max_bytes,
            max_files=args.max_files,
            rate=args.rate,
            idle=args.idle,
            memory=args.memory,
            bins=args.bins,
            config=config,
            accept=Consents(report) if asks else None,
            list_files=out.as_json,
            on_progress=report.take,
        ) as receiver:
            if removed := receiver.removed:
                named = ", ".join(map(shown, removed[:3]))
                more = f" and {counted(len(removed) - 3, 'other file')}" * (len(removed) > 3)
                out.note(f"removed what was left of {named}{more}")
            ctx = receiver.context
            endpoint.announce(out, ctx)
            out.note(f"listening on TCP port {receiver.port}, UDP port {ctx.udp_port}")
            async for received in receiver:
                host, error = received.host, received.error
                if error is None:
                    code = exit_code(received.result())
                    continue
                with report.lines():
                    code = out.session_failed(host, error)
                if received.awaited:
                    idle = digits(args.idle)
                    report.note(f"{shown(host)} may come back within {idle} s (--idle)")
    return code


# ---- Whom the user at the terminal lets send -----------------------------------------------------
#
# Consent holds for a key that the sender has proved, never for a name or an address: "y" until the
# command ends, "always" also later. A sender who has proved no key is asked about each time. What
# the question shows is all that the transfer may store.


_YES = ("y", "yes")
_NAMES = 3  # that a question shows
_NAME_CHARACTERS = 32


class _BusyUserError(TransferError):
    """The user is asked about another sender at this address."""

    told = "its user is asked about another transfer from this address: try again afterwards"


class Consents:
    """Asks about senders, one question at a time: `accept` of a receiver.

    One question about each address is open at a time: a stranger with many keys cannot keep the
    user busy.
    """

    def __init__(self, report: TransferReport) -> None:
        self._report = report
        self._turn = asyncio.Lock()
        self._given: set[str] = set()  # fingerprints, until the command ends
        self._open: dict[str, str] = {}  # by address: who the open question is about

    def __call__(self, offered: Offered) -> Awaitable[bool] | None:
        """None: somebody who is trusted."""
        address, who = offered.peer, offered.identity
        if self._has(who):
            return None
        if address in self._open and not (_is_key(who) and self._open[address] == who):
            raise _BusyUserError(f"refused another sender at {address}: a question is open")
        answer = asyncio.create_task(self._answer(offered))
        if address not in self._open:
            self._open[address] = who
            answer.add_done_callback(lambda _: self._open.pop(address))
        return answer

    def _has(self, who: str) -> bool:
        return _is_key(who) and (who in self._given or who in AllowedPeers())

    async def _answer(self, offered: Offered) -> bool:
        who = offered.identity
        async with self._turn:
            if self._has(who):  # from the answer to another session of this sender
                return True
            with self._report.lines():
                answer = await endpoint.ask(_question(offered))
            return self._remember(who, offered.peer, answer) if _is_key(who) else answer in _YES

    def _remember(self, who: str, address: str, answer: str) -> bool:
        """What the answer about a proved key means, also for later."""
        if answer == "always":
            peers = AllowedPeers()
            try:
                peers.add(who, f"{address}, {datetime.now(UTC):%Y-%m-%d}")
            except OSError as error:
                why = (error.strerror or str(error)).lower()
                self._report.note(f"{peers.path}: {why}: the answer counts until this command ends")
            else:
                self._report.note(f"{peers.path} has {who} now: remove that line to be asked again")
                return True
        elif answer in _YES:
            self._report.note(f"no further question about {who} until this command ends")
        else:
            return False
        self._given.add(who)
        return True


def _is_key(identity: str) -> bool:
    with suppress(ValueError):
        return bool(AllowedPeers.fingerprint(identity))
    return False


def _question(offered: Offered) -> str:
    """Who it is comes first; what a peer chose itself is quoted, and short."""
    announced = offered.announced
    choices = "[y/N/always]" if _is_key(offered.identity) else "[y/N]"
    called = shown(offered.name, _NAME_CHARACTERS, quoted=True)
    who = f"{offered.identity or 'no key'} at {offered.peer}, called {called},"
    files, size = announced.files, announced.bytes
    what = "files" if files is None else "a file" if files == 1 else counted(files, "file")
    if folders := announced.folders:
        what += " and " + ("a folder" if folders == 1 else counted(folders, "folder"))
    what += f", {'of unknown size' if size is None else scaled(size, 'B')}"
    names = ", ".join(
        shown(name, _NAME_CHARACTERS, quoted=True) for name in announced.names[:_NAMES]
    )
    more = announced.more + len(announced.names[_NAMES:])
    what += (f": {names}" if names else "") + (f" and {more} more" if more else "")
    return f"{who} offers {what}: accept? {choices} "
