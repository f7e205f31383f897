# SPDX-License-Identifier: Apache-2.0
"""MPIs and their launchers, over mrc and over TCP, for bench/mpi and the tests.

Each MPI has an environment of its own, which a variable names, because they have files of the same
names. Open MPI may be in this one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mrc.agent.cli.run import hydra_options, mpi_options

MRC, TCP = "mrc", "TCP"
WINDOWS = "mrc, with windows"
Words = Sequence[str | Path]


@dataclass(frozen=True)
class Mpi:
    name: str
    variable: str
    packages: str
    launcher: str
    home_here: str = "/nonexistent"  # without the variable

    @property
    def home(self) -> Path:
        return Path(os.environ.get(self.variable, self.home_here))

    @property
    def python(self) -> Path:
        return self.home / "bin/python"

    @property
    def path(self) -> Path:
        return self.home / "bin" / self.launcher

    @property
    def is_there(self) -> bool:
        return self.path.exists() and any(self.home.glob("lib/python*/site-packages/mpi4py"))

    @property
    def needs(self) -> str:
        """What to do where it is missing."""
        return (
            f"pip install {self.packages} mpi4py numpy (in the environment that {self.variable} "
            "names, or for Open MPI here)"
        )

    def command(
        self, rsh: Path, over: str, where: str, program: Words, planes: Iterable[int] = ()
    ) -> list[str]:
        """Runs as many ranks of each host as `where` says, as in `h0:2,h1:2`. `rsh` stands in place
        of ssh; `planes` are for TCP.
        """
        interfaces = [f"p{plane}" for plane in planes]
        return [*self._launch(rsh, over, where, interfaces), *map(str, program)]

    def _launch(self, rsh: Path, over: str, where: str, interfaces: list[str]) -> list[str]:
        raise NotImplementedError


class OpenMpi(Mpi):
    def _launch(self, rsh: Path, over: str, where: str, interfaces: list[str]) -> list[str]:
        """Not bound to cores: else the first rank of each host has the first core. Without WINDOWS,
        windows are over TCP even with mrc, and would hang with a plane that dies.
        """
        tcp = {
            "pml": "ob1", "btl": "tcp,self", "btl_tcp_if_include": ",".join(interfaces),
            "btl_tcp_disable_family": "4",
        }  # fmt: skip
        chosen = [word for name, value in tcp.items() for word in ("--mca", name, value)]
        if over == WINDOWS:
            chosen = mpi_options(windows=True)
        elif over == MRC:
            chosen = [*mpi_options(), "--mca", "btl_tcp_if_include", "mgmt"]
        return [
            *(str(self.path), "--allow-run-as-root", "--prtemca", "plm_ssh_agent", str(rsh)),
            *("--host", where, "--bind-to", "none"),
            *chosen,
        ]


class Hydra(Mpi):
    """MPICH or Intel MPI."""

    def _launch(self, rsh: Path, over: str, where: str, interfaces: list[str]) -> list[str]:
        """libfabric's TCP has one interface."""
        hosts = [each.partition(":") for each in where.split(",")]
        n = sum(int(count) for _, _, count in hosts)
        own = {
            "I_MPI_ROOT": self.home,
            "LD_LIBRARY_PATH": self.home / "lib",
            "I_MPI_PIN": 0,
        }
        tcp = {
            "FI_PROVIDER": "tcp", "I_MPI_OFI_PROVIDER": "tcp", "MPIR_CVAR_CH4_NETMOD": "ofi",
            "FI_TCP_IFACE": ",".join(interfaces[:1]),
        }  # fmt: skip
        chosen = [word for name, value in tcp.items() for word in ("-genv", name, value)]
        return [
            *("env", *(f"{name}={value}" for name, value in own.items()), str(self.path)),
            *("-launcher", "ssh", "-launcher-exec", str(rsh)),
            *(chosen if over == TCP else hydra_options()),
            *("-n", str(n), "-ppn", hosts[0][2], "-hosts", ",".join(name for name, _, _ in hosts)),
        ]


OPEN_MPI = OpenMpi("Open MPI", "MRC_OPEN_MPI", "openmpi", "mpirun", sys.prefix)
MPICH = Hydra("MPICH", "MRC_MPICH", "mpich", "mpiexec.hydra")
INTEL_MPI = Hydra("Intel MPI", "MRC_INTEL_MPI", "impi-rt", "mpiexec.hydra")
ALL = {each.name: each for each in (OPEN_MPI, MPICH, INTEL_MPI)}


def write_rsh(path: Path, bed: str) -> None:
    """A command in place of ssh, for the hosts of a test bed. Hydra wants one file."""
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mrc testbed --name {bed} rsh "$@"\n')
    path.chmod(0o755)
