# SPDX-License-Identifier: Apache-2.0
"""A program, `sealed_end.py ROLE SEAL FOLDER`: one end of a QP, which obeys its input.

SEAL is a name of mrc.Seal.

Prints a line of JSON when it is connected, and one for each line of its input: `write SEED` fills
the memory of the peer, `probe` probes an EV, `state` tells how the QP and the drops are.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

from attack.net import ADDRESSES

from mrc import QP, Access, Context, ContextConfig, MrcError, RemoteMemory, Spraying
from mrc.connect.security import Security
from mrc.enums import Seal

BYTES = 40_000  # some packets
SECRET = bytes(range(32))


def pattern(seed: int) -> bytes:
    return random.Random(seed).randbytes(BYTES)


def digest(data: bytes | bytearray) -> str:
    return hashlib.sha256(data).hexdigest()


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


async def obey(ctx: Context, qp: QP, line: str, target: bytearray) -> dict[str, Any]:
    word, *rest = line.split()
    if word == "write":
        async with ctx.register(pattern(int(rest[0]))) as mr:
            remote = RemoteMemory.from_dict(qp.private)
            return {"status": (await qp.write(mr, remote, timeout=200)).status.name}
    if word == "probe":
        while (found := await qp.probe_ev(0)).error == errno.ETIMEDOUT:
            pass  # the peer may stand still
        return {"answered": found.error == 0}
    info, drops = await qp.query(), await ctx.drops()
    return {"state": info.state.name, "drops": drops, "target": digest(target),
            "planes": len(qp.planes)}  # fmt: skip


async def main(role: str, seal: str, folder: Path) -> None:
    security = Security(identity=folder / f"{role}.pem", secret=SECRET)
    config = ContextConfig(
        interfaces=("eth0",), spraying=Spraying(burst_packets=1), security=security, seal=Seal[seal]
    )
    target = bytearray(BYTES)
    async with Context(config) as ctx, ctx.register(target, access=Access.REMOTE_WRITE) as mr:
        private = mr.remote.to_dict()
        if role == "listens":
            listener = await ctx.listen(private=private)
            say(listening=True)
            qp = await listener.accept()
        else:
            qp = await ctx.connect(ADDRESSES["b"], private=private)
        say(seal=qp.seal.name, identity=qp.peer_identity)
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                said = await obey(ctx, qp, line, target)
            except MrcError as error:
                said = {"error": str(error)}
            say(**said)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
