# SPDX-License-Identifier: Apache-2.0
"""Messages between all pairs of ranks, short and long. Rank 0 prints how many ranks there are."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
SIZES = (8, 4096, 1 << 20)


def value(source: int, target: int, size: int) -> int:
    return int(source * WORLD.size + target + size) % 251


def pairs(size: int) -> None:
    """All at once: each rank sends to all ranks, and takes what comes first."""
    sends = [
        WORLD.Isend(np.full(size, value(WORLD.rank, target, size), np.uint8), target, 1)
        for target in range(WORLD.size)
    ]
    sources = set()
    for _ in range(WORLD.size):
        got, status = np.zeros(size, np.uint8), MPI.Status()
        WORLD.Recv(got, MPI.ANY_SOURCE, 1, status)
        assert (got == value(status.source, WORLD.rank, size)).all()
        sources.add(status.source)
    assert sources == set(range(WORLD.size))
    MPI.Request.Waitall(sends)


for each in SIZES:
    pairs(each)
    assert WORLD.allreduce(WORLD.rank) == WORLD.size * (WORLD.size - 1) // 2
    blocks = WORLD.alltoall([(WORLD.rank, target) for target in range(WORLD.size)])
    assert blocks == [(source, WORLD.rank) for source in range(WORLD.size)]
if WORLD.rank == 0:
    print(WORLD.size, flush=True)
