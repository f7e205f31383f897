# SPDX-License-Identifier: Apache-2.0
"""Two ranks read and write each other's windows; rank 0 prints whether all was right."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
OTHER = 1 - WORLD.rank
SIZES = (1, 8, 5000, 3 << 20)


def filled(rank: int, size: int) -> np.ndarray:
    return ((np.arange(size) * 7 + rank) % 251).astype(np.uint8)


def check(size: int) -> None:
    memory = MPI.Alloc_mem(2 * size)
    window = MPI.Win.Create(memory, 1, MPI.INFO_NULL, WORLD)
    view = np.frombuffer(memory, np.uint8)
    view[:size], view[size:] = filled(WORLD.rank, size), 0
    window.Fence()
    got = np.zeros(size, np.uint8)
    window.Get(got, OTHER)
    put = filled(WORLD.rank + 2, size)
    window.Put(put, OTHER, target=(size, size, MPI.BYTE))
    window.Fence()
    assert (got == filled(OTHER, size)).all()
    assert (view[size:] == filled(OTHER + 2, size)).all()
    window.Lock(OTHER)
    window.Get(got, OTHER, target=(size, size, MPI.BYTE))
    window.Unlock(OTHER)
    assert (got == put).all()
    WORLD.Barrier()
    window.Free()
    MPI.Free_mem(memory)


def sum_up() -> None:
    """An accumulate, which needs the other rank."""
    total = np.zeros(10, np.int64)
    window = MPI.Win.Create(total, 8, MPI.INFO_NULL, WORLD)
    window.Fence()
    part = np.arange(10)
    window.Accumulate(part, 0, op=MPI.SUM)
    window.Fence()
    assert WORLD.rank != 0 or (total == 2 * part).all()
    window.Free()


for bytes_of_window in SIZES:
    check(bytes_of_window)
sum_up()
if WORLD.rank == 0:
    print("good")
