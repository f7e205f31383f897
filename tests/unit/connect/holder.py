# SPDX-License-Identifier: Apache-2.0
"""A process of a user: `holder.py listens|PORT secret|key|code FILE`; with a PORT it connects.

FILE holds what it proves itself by. It tells its port and what has happened, and goes on after each
line on its standard input.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import mrc
from mrc.connect.security import Security, load_secret


async def _yes(host: str, shown: str) -> bool:
    return True


def security(way: str, path: Path) -> Security:
    if way == "secret":
        return Security(secret=load_secret(path))
    if way == "code":
        return Security(code=path.read_text())
    return Security(allow_any=True, ask=_yes, known_hosts=path.with_suffix(".known"))


async def told(line: str) -> None:
    """Tells it, and waits until the other side has looked."""
    print(line, flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def connected(context: mrc.Context, side: str) -> mrc.QP:
    if side != "listens":
        return await context.connect("127.0.0.1", int(side))
    async with context.listen("127.0.0.1", 0) as listener:
        print(listener.port, flush=True)
        return await listener.accept()


async def main(side: str, way: str, file: str) -> None:
    config = mrc.ContextConfig(interfaces=("lo",), security=security(way, Path(file)))
    async with mrc.open(config) as context:
        async with await connected(context, side) as qp:
            await qp.write(imm=7)
            assert (await anext(qp.immediates())).imm == 8
            await told("open")
        await told("closed")


asyncio.run(main(*sys.argv[1:]))
