# SPDX-License-Identifier: Apache-2.0
"""Ranks of MPI programs: `ranks.py PROGRAM ARGUMENTS...`."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
OTHER = 1 - WORLD.rank
MIB = 1 << 20
ROWS, COLUMNS = 128, 4096  # of the plate

# ---- Two ranks, and what they say to each other and to themselves -------------------------------


def every_size() -> None:
    """Around the longest eager message, and long ones, both ways at one time."""
    for size in (0, 1, 4095, 4096, 4097, 8192, MIB, 16 * MIB + 1):
        sent = np.full(size, WORLD.rank + 1, np.uint8)
        got = np.zeros(size, np.uint8)
        WORLD.Sendrecv(sent, OTHER, 3, got, OTHER, 3)
        assert (got == OTHER + 1).all(), size


def to_itself() -> None:
    """A rank is its own peer, also for receives from any source."""
    for size in (8, MIB):
        sent, got = np.arange(size), np.zeros(size, int)
        request = WORLD.Isend(sent, WORLD.rank, 4)
        status = MPI.Status()
        WORLD.Recv(got, MPI.ANY_SOURCE, 4, status)
        request.Wait()
        assert status.source == WORLD.rank and (got == sent).all()


def in_order() -> None:
    """Messages of one tag keep their order, short and long; another tag overtakes them."""
    sizes = [1, 5000, 2, 100000, 3] * 20
    if WORLD.rank == 0:
        requests = [
            WORLD.Isend(np.full(size, n % 251, np.uint8), 1, 5) for n, size in enumerate(sizes)
        ]
        WORLD.send("last", 1, 6)
        MPI.Request.Waitall(requests)
    else:
        assert WORLD.recv(source=0, tag=6) == "last"
        for n, size in enumerate(sizes):
            got = np.zeros(size, np.uint8)
            WORLD.Recv(got, 0, 5)
            assert (got == n % 251).all(), n


def probed() -> None:
    """A probe sees a message that any receive may take; a matched probe keeps it for one."""
    if WORLD.rank == 0:
        WORLD.Ssend(bytes(5000), 1, 7)
        WORLD.Ssend(b"second", 1, 7)
        return
    status = MPI.Status()
    WORLD.Probe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
    assert (status.source, status.tag, status.count) == (0, 7, 5000)
    first = WORLD.Mprobe(0, 7)
    request = WORLD.Irecv(taken := bytearray(6), 0, 7)
    first.Recv(bytearray(5000))
    request.Wait()
    assert taken == b"second"
    assert not WORLD.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)


def cut() -> None:
    """Only the receiver hears of a message that its memory cannot take."""
    WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    for size in (100, MIB):
        if WORLD.rank == 0:
            WORLD.Send(bytes(size), 1, 8)
            continue
        try:
            WORLD.Recv(bytearray(10), 0, 8)
        except MPI.Exception as error:
            assert error.Get_error_class() == MPI.ERR_TRUNCATE
        else:
            raise AssertionError("nothing was too long")


def cancelled() -> None:
    """A receive without a message can be cancelled."""
    request = WORLD.Irecv(bytearray(10), OTHER, 9)
    request.Cancel()
    status = MPI.Status()
    request.Wait(status)
    assert status.Is_cancelled()


def basics() -> None:
    """Rank 0 prints "good" at the end."""
    for each in (every_size, to_itself, in_order, probed, cut, cancelled):
        each()
        WORLD.Barrier()
    if WORLD.rank == 0:
        print("good", flush=True)


# ---- All pairs ----------------------------------------------------------------------------------


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


def crowd() -> None:
    """Messages between all pairs of ranks, short and long. Rank 0 prints how many ranks there
    are.
    """
    for each in (8, 4096, 1 << 20):
        pairs(each)
        assert WORLD.allreduce(WORLD.rank) == WORLD.size * (WORLD.size - 1) // 2
        blocks = WORLD.alltoall([(WORLD.rank, target) for target in range(WORLD.size)])
        assert blocks == [(source, WORLD.rank) for source in range(WORLD.size)]
    if WORLD.rank == 0:
        print(WORLD.size, flush=True)


# ---- Others -------------------------------------------------------------------------------------


def wants_more() -> bool:
    print("half", flush=True)
    return bool(Path(sys.argv[3]).read_bytes())


def halo() -> None:
    """Heat in a plate, by Jacobi's method: each rank has rows of it and exchanges its borders in
    each step. Rank 0 prints "half" when half of the steps are done, reads the pipe that it was
    given to its end, and prints the digest of the whole plate at last. If it has read something,
    the ranks exchange their borders again, for nothing, and it prints "half" once more.

    The result does not depend on the number of ranks, to the last bit.
    """
    steps = int(sys.argv[2])
    world = MPI.COMM_WORLD
    rank, size = world.rank, world.size
    rows = ROWS // size
    whole = np.random.default_rng(1).random((ROWS + 2, COLUMNS))
    plate = whole[rank * rows : (rank + 1) * rows + 2].copy()
    above = rank - 1 if rank > 0 else MPI.PROC_NULL
    below = rank + 1 if rank < size - 1 else MPI.PROC_NULL
    scratch = np.empty_like(plate[0])
    for step in range(steps):
        while step == steps // 2 and world.bcast(rank == 0 and wants_more()):
            for _ in range(steps // 2):
                world.Sendrecv(plate[1], above, 1, scratch, below, 1)
                world.Sendrecv(plate[-2], below, 2, scratch, above, 2)
        world.Sendrecv(plate[1], above, 1, plate[-1], below, 1)
        world.Sendrecv(plate[-2], below, 2, plate[0], above, 2)
        vertical = plate[:-2, 1:-1] + plate[2:, 1:-1]
        plate[1:-1, 1:-1] = 0.25 * (vertical + (plate[1:-1, :-2] + plate[1:-1, 2:]))
    parts = world.gather(plate[1:-1])
    if rank == 0:
        print(hashlib.sha256(np.concatenate(parts).tobytes()).hexdigest(), flush=True)


def killed() -> None:
    """Rank 1 dies in an exchange. Rank 0 prints the error of its call."""
    WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    sent, got = np.zeros(1 << 20, np.uint8), np.zeros(1 << 20, np.uint8)
    for step in range(1 << 30):
        if WORLD.rank == 1 and step == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            WORLD.Sendrecv(sent, OTHER, 1, got, OTHER, 1)
        except MPI.Exception as error:
            print(error, flush=True)
            os._exit(3)


def filled(rank: int, size: int) -> np.ndarray:
    return ((np.arange(size) * 7 + rank) % 251).astype(np.uint8)


def check_window(size: int) -> None:
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


def windows() -> None:
    """Two ranks read and write each other's windows; rank 0 prints whether all was right."""
    for bytes_of_window in (1, 8, 5000, 3 << 20):
        check_window(bytes_of_window)
    sum_up()
    if WORLD.rank == 0:
        print("good")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
