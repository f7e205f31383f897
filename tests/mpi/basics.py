# SPDX-License-Identifier: Apache-2.0
"""What two ranks say to each other and to themselves. Rank 0 prints "good" at the end."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
OTHER = 1 - WORLD.rank
MIB = 1 << 20


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


for each in (every_size, to_itself, in_order, probed, cut, cancelled):
    each()
    WORLD.Barrier()
if WORLD.rank == 0:
    print("good", flush=True)
