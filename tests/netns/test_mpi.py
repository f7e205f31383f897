# SPDX-License-Identifier: Apache-2.0
"""MPI over libmrc-fi: ranks in hosts with four planes of 500 Mbit/s, started by its launcher.

Open MPI may be in this environment. MPICH and Intel MPI have files of the same names, so they have
environments of their own, which MRC_MPICH and MRC_INTEL_MPI name.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from netns.processes import Hosts, Mrc
from peers import ALL, MRC, OPEN_MPI, WINDOWS, Mpi, write_rsh
from slowness import PATIENCE

from mrc.agent.libraries import PROVIDER
from mrc.testbed.bed import Testbed

from .conftest import bed_of

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests/mpi"
RANKS = PROGRAMS / "ranks.py"
STEPS = 200
WINDOWS_BYTES = 10_000_000
"""fewer than `windows` moves"""
YIELDING = ["--mca", "mpi_yield_when_idle", "1"]
"""Open MPI does not see that its hosts share cores: ranks that wait would keep them."""

Start = Callable[..., Mrc]

pytestmark = [
    pytest.mark.usefixtures("healed"),
    pytest.mark.skipif(
        not (ROOT / "mrc/lib" / PROVIDER).exists(),
        reason="the provider is not built: apt-get install libfabric-dev",
    ),
]
mpis = pytest.mark.parametrize(
    "mpi",
    [
        pytest.param(
            each,
            id=each.packages,
            marks=[
                pytest.mark.skipif(not each.is_there, reason=f"lacks {each.name}: {each.needs}"),
                *([] if each is OPEN_MPI else [pytest.mark.slow]),
            ],
        )
        for each in ALL.values()
    ],
)
needs_open_mpi = pytest.mark.skipif(
    not OPEN_MPI.is_there, reason=f"lacks Open MPI: {OPEN_MPI.needs}"
)


bed = bed_of(hosts=3, planes=4, t1=2, rate="500mbit")


@pytest.fixture(scope="module")
def agents(bed: Testbed) -> Iterator[Hosts]:
    with Hosts(bed) as hosts:
        for name in ("h0", "h1", "h2"):
            hosts.agent(name)
        yield hosts


@pytest.fixture
def start(agents: Hosts, tmp_path: Path) -> Start:
    """Ranks of a program in Python, started from h0."""
    rsh = tmp_path / "rsh"
    write_rsh(rsh, agents.bed.name)

    def start(
        mpi: Mpi,
        *program: str | Path,
        where: str = "h0:1,h1:1",
        options: Sequence[str] = (),
        over: str = MRC,
    ) -> Mrc:
        shared = YIELDING if mpi is OPEN_MPI else []
        command = mpi.command(rsh, over, where, [*shared, *options, mpi.python, *program])
        return agents.start("h0", "testbed", "--name", agents.bed.name, "rsh", "h0", *command)

    return start


def sent_bytes(bed: Testbed) -> dict[str, int]:
    """What has passed the links of h0, each way of each plane."""
    return {name: each["bytes"] for name, each in bed.links().items() if "h0" in name}


@mpis
@pytest.mark.parametrize("dead", [(), ("plane:2",)], ids=["", "a dead plane"])
def test_windows(start: Start, mpi: Mpi, bed: Testbed, dead: Sequence[str]) -> None:
    for target in dead:
        bed.fail(target)
    before = sum(sent_bytes(bed).values())
    assert start(mpi, RANKS, "windows", over=WINDOWS).ends(0) == "good\n"
    assert sum(sent_bytes(bed).values()) - before > WINDOWS_BYTES


@needs_open_mpi
def test_windows__of_open_mpi_without_their_options(start: Start, bed: Testbed) -> None:
    """They are over TCP."""
    before = sum(sent_bytes(bed).values())
    assert start(OPEN_MPI, RANKS, "windows").ends(0) == "good\n"
    assert sum(sent_bytes(bed).values()) - before < WINDOWS_BYTES


@needs_open_mpi
def test_crowd__with_the_options_of_windows(start: Start) -> None:
    """Messages are carried too."""
    assert start(OPEN_MPI, RANKS, "crowd", over=WINDOWS).ends(0) == "2\n"


@mpis
def test_ranks__sizes_order_probes_and_errors(start: Start, mpi: Mpi) -> None:
    assert start(mpi, RANKS, "basics").ends(0) == "good\n"


@mpis
@pytest.mark.parametrize(
    ("ranks", "where"), [(4, "h0:2,h1:2"), (3, "h0:1,h1:1,h2:1")], ids=["two hosts", "three hosts"]
)
def test_crowd__each_with_all(start: Start, mpi: Mpi, ranks: int, where: str) -> None:
    """Ranks of one host reach each other by mrc too, if their MPI lets them."""
    assert start(mpi, RANKS, "crowd", where=where).ends(0) == f"{ranks}\n"


@needs_open_mpi
def test_killed__the_other_rank_gets_an_error(start: Start) -> None:
    """`--continuous`: mpirun does not end the other rank."""
    ranks = start(OPEN_MPI, RANKS, "killed", options=["--continuous"])
    assert ranks.ends(3) == "MPI_ERR_INTERN: internal error\n"
    (line,) = [line for line in ranks.lines if line.startswith("libmrc-fi:")]
    assert re.fullmatch(r"libmrc-fi: the process at [0-9a-f:]+ has ended", line)


@pytest.mark.default
@mpis
def test_halo_exchange__through_a_planes_death(
    start: Start, mpi: Mpi, bed: Testbed, tmp_path: Path
) -> None:
    """The result is that of one process, bit for bit, and all planes have carried it."""
    alone = subprocess.run(
        [mpi.python, str(RANKS), "halo", str(STEPS), os.devnull],
        env=os.environ | {"OMPI_MCA_btl": "self"},  # its "sm" leaves a file of 16 MiB in /dev/shm
        capture_output=True, text=True, check=True, timeout=PATIENCE,
    )  # fmt: skip
    before, gate = sent_bytes(bed), tmp_path / "gate"
    os.mkfifo(gate)
    ranks = start(mpi, RANKS, "halo", str(STEPS), gate)
    assert ranks.process.stdout is not None
    while True:
        assert ranks.process.stdout.readline() == "half\n", ranks.lines
        moved = [now - before[name] for name, now in sent_bytes(bed).items()]
        assert len(moved) == 8, "both ways of four planes"
        if min(moved) > 20_000:  # not only probes
            break
        before = sent_bytes(bed)
        gate.write_bytes(b"once more: a rank has stood still")
    bed.fail("plane:2")
    gate.write_bytes(b"")  # now they go on
    digest = alone.stdout.split()[-1]
    assert ranks.ends(0).split() == [digest]


def own_tests(mpi: Mpi, folder: Path) -> Path:
    """Those of mpi4py, of the installed version."""
    name = "import mpi4py; print(mpi4py.__version__)"
    version = subprocess.check_output([mpi.python, "-c", name], text=True).strip()
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


@mpis
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_mpi4py__own_tests(start: Start, mpi: Mpi, bed: Testbed, tmp_path: Path) -> None:
    """All in one run, during which a plane dies."""
    left_out = PROGRAMS / f"left-out-{mpi.packages}.txt"
    ranks = start(mpi, own_tests(mpi, tmp_path), "--xfile", left_out, "-f")
    ranks.until_says("] mpi4py ")
    bed.fail("plane:2")
    ranks.ends(0, within=1600)
    assert len(re.findall(r"Ran \d+ tests", "\n".join(ranks.lines))) == 2, ranks.lines
