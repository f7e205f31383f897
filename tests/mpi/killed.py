# SPDX-License-Identifier: Apache-2.0
"""Rank 1 dies in an exchange. Rank 0 prints the error of its call."""

from __future__ import annotations

import os
import signal

import numpy as np
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
WORLD.Set_errhandler(MPI.ERRORS_RETURN)
OTHER = 1 - WORLD.rank
sent, got = np.zeros(1 << 20, np.uint8), np.zeros(1 << 20, np.uint8)
for step in range(1 << 30):
    if WORLD.rank == 1 and step == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        WORLD.Sendrecv(sent, OTHER, 1, got, OTHER, 1)
    except MPI.Exception as error:
        print(error, flush=True)
        os._exit(3)
