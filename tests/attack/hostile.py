# SPDX-License-Identifier: Apache-2.0
"""A program, `hostile.py ATTACK HOST PORT [SECRET]`: connects correctly, then misbehaves.

SECRET is a file; without, nothing is encrypted.

Prints the victim's answer when the attack is established. Runs until it is killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import mrc
from mrc.connect.security import Security
from mrc.engine.native import lib
from mrc.events import Immediate
from mrc.mailbox import MailboxSession
from mrc.perf.load import PerfPlan
from mrc.perf.session import SERVICE as PERF
from mrc.transfer.session import SERVICE as FILES

MUCH = 1 << 43  # allowed
CHUNK = 4 << 20
EMPTY_DIGEST = "99aa06d3014798d86001c324468d497f"
Connect = Callable[[], AbstractAsyncContextManager[MailboxSession]]


def say(text: object) -> None:
    print(text, flush=True)


async def answer(session: MailboxSession) -> dict[str, Any]:
    """The next message of the victim."""
    while isinstance(message := await session.receive(), Immediate):
        pass
    return message


async def offer(session: MailboxSession, name: str, size: int) -> dict[str, Any]:
    message = {"type": "offer", "name": name, "bytes": size, "chunk_bytes": CHUNK}
    await session.mailbox.send(message)
    return await answer(session)


async def disk(session: MailboxSession, _connect: Connect) -> None:
    """Offers a file that leaves no room for another on the disk, and stays connected."""
    say((await offer(session, "hold", 60 << 20))["type"])


async def names(session: MailboxSession, connect: Connect) -> None:
    """Each refusal ends a session, so each name gets its own session."""
    said = [await offer(session, ".bash_profile", 1)]
    for name in ("-rf", "a\x1b]0;x\x07\n", "x\u202egnp.sh"):
        async with connect() as another:
            said.append(await offer(another, name, 1))
    say(json.dumps(said))


async def unread(session: MailboxSession, _connect: Connect) -> None:
    """Sends 32 messages that grow 24-fold when decoded, while the victim waits for credit."""
    mailbox = session.mailbox
    # It never waits for credit, and grants none, as it receives nothing.
    unlimited = Mock(wraps=lib)
    unlimited.mrc_slots_may_send.return_value = True
    patch("mrc.mailbox.lib", unlimited).start()
    say("sending")
    for n in range(9):
        file = {"name": f"empty{n}", "bytes": 0, "chunk_bytes": CHUNK}
        await mailbox.send({"type": "offer", **file})
        await mailbox.send({"type": "done", "digest": EMPTY_DIGEST, "chunks": 0})
    for _ in range(32):
        await mailbox.send({"a": [{}] * 60_000})


async def plans(session: MailboxSession, connect: Connect) -> None:
    """Three clients at a time; the plan of each requires 32 MiB twice."""
    said = []
    async with AsyncExitStack() as stack:
        for _ in range(3):
            another = await stack.enter_async_context(connect())
            plan = PerfPlan(size=32 << 20, qps=1, depth=1, seconds=1.0).to_dict()
            memory = {"address": 0, "rkey": 1, "length": 1}
            message = {"type": "plan", "plan": plan, "memory": memory}
            await another.mailbox.send(message)
            said.append(await answer(another))
        say(json.dumps(said))
        await asyncio.Event().wait()


async def main(security: Security | None) -> None:
    attack = {"disk": disk, "names": names, "unread": unread, "plans": plans}[sys.argv[1]]
    async with mrc.open(name="[/]", security=security) as ctx:
        service = PERF if attack is plans else FILES
        host, port, about = sys.argv[2], int(sys.argv[3]), {"bytes": MUCH}
        connect = partial(service.connect, ctx, host, port, private=about, timeout=60)
        async with connect() as session:
            await attack(session, connect)
            await asyncio.Event().wait()


if __name__ == "__main__":
    secrets = [Path(file).read_bytes() for file in sys.argv[4:]]
    asyncio.run(main(Security(secret=secrets[0]) if secrets else None))
