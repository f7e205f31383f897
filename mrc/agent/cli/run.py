# SPDX-License-Identifier: Apache-2.0
"""`mrc run`: runs a program written for MRC's C interface or for RDMA verbs, without a NIC."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from mrc.agent import libraries
from mrc.agent import socket as agent_socket
from mrc.agent.cli import agent
from mrc.cli import endpoint
from mrc.cli.arguments import add
from mrc.cli.output import Exit, UsageError
from mrc.cli.runner import become, refused
from mrc.errors import ConfigError
from mrc.units import digits

HELP = "run a program written for MRC's C interface or for RDMA verbs"
EXAMPLES = """\
examples:
  mrc run --insecure -- ibv_devinfo    the device that programs see
  mrc run --secret FILE -- ib_write_bw -d mrc0       RDMA's usual test (its server)
  mrc run --secret FILE -- ib_write_bw -d mrc0 h1    and its client
  mrc run --rc --secret FILE -- ibv_rc_pingpong -g 0 h1      a program that needs more than WRITE
  eval "$(mrc run --env)"              for every program of this shell; start mrc agent first
  mpirun $(mrc run --mpi) -n 2 --host h0,h1 python job.py     Open MPI; start mrc agent on each host
  mpirun $(mrc run --mpi --windows) -n 2 --host h0,h1 python job.py     with one-sided operations
  mpiexec $(mrc run --hydra) -n 2 -hosts h0,h1 python job.py   MPICH, Intel MPI; also an agent each
  cc prog.c -L "$(mrc run --libdir)" -lmrc
"""
OPTIONS = """
--rc      emulate SEND, READ, ATOMIC and shared receive queues, which MRC has not, and rdma_cm; on
          both hosts
--env     print the environment that programs need, for a shell, and exit
--libdir  print the folder of libmrc, and exit
--mpi     print the options with which Open MPI's mpirun uses mrc, and exit
--windows  with --mpi: the options for programs with windows (one-sided operations)
--hydra   print the options with which mpiexec of MPICH and Intel MPI uses mrc, and exit
"""
_RC = "MRC_RC"  # libmrc looks at it
_START_SECONDS = 15.0
_LOOK_SECONDS = 0.01
_LAST_LOOK_SECONDS = 1.0  # of a machine that stood still meanwhile
_IDLE_SECONDS = "30"  # the agent that this command starts ends after this time without programs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="-- PROGRAM", help="the program to run"
    )
    add(parser, OPTIONS)
    agent.add_options(parser)


def _folder_of(library: str) -> Path:
    if why := libraries.why_missing(library):
        raise ConfigError(f"{library}: {why[0]}; remedy: {why[1]}")
    return libraries.FOLDER


def library_folder() -> Path:
    """Where libmrc is; raises ConfigError if it was not built."""
    return _folder_of(libraries.LIBMRC)


def _provider_folder() -> Path:
    folder = _folder_of(libraries.PROVIDER)
    libraries.refuse_folder(":", "FI_PROVIDER_PATH")
    libraries.refuse_folder(r"\s", "the shell in mpirun $(mrc run ...)")
    return folder


def mpi_options(*, windows: bool = False) -> list[str]:
    """The options of mpirun; raises ConfigError if the provider was not built, or cannot be named.

    Messages are fastest by the MTL, which has no windows. The BTL has both (mode 2), and a process
    can have only one of the two.
    """
    folder = _provider_folder()
    chosen = {"opal_common_ofi_provider_include": "mrc", "osc": "^ucx"}
    if windows:
        chosen |= {"pml": "ob1", "btl": "ofi,self", "btl_ofi_mode": "2"}
    else:
        chosen |= {"pml": "cm", "mtl": "ofi", "btl": "^ofi"}
    options = [word for name, value in chosen.items() for word in ("--mca", name, value)]
    return ["-x", f"FI_PROVIDER_PATH={folder}", *options]


def hydra_options() -> list[str]:
    """The options of Hydra's mpiexec, of both MPICH and Intel MPI; raises ConfigError as above."""
    chosen = {
        "FI_PROVIDER_PATH": str(_provider_folder()),
        "FI_PROVIDER": "mrc",
        "MPIR_CVAR_CH4_NETMOD": "ofi",
        "I_MPI_OFI_PROVIDER": "mrc",
    }
    return [word for name, value in chosen.items() for word in ("-genv", name, value)]


def environment(*, rc: bool = False) -> dict[str, str]:
    """The variables by which programs find libmrc: preloaded, or by the name of libibverbs."""
    library_folder()
    names = [libraries.LIBMRC]
    if rc and libraries.why_missing(libraries.LIBMRC_CM) is None:
        names.append(libraries.LIBMRC_CM)  # programs without rdma_cm do without
    found = libraries.preloading(names, os.environ)
    return found | ({_RC: "1"} if rc else {})


def run(args: argparse.Namespace) -> int:
    if args.libdir:
        print(library_folder())
        return Exit.OK
    if args.windows and not args.mpi:
        raise UsageError(args.prog, "--windows belongs to --mpi")
    if args.mpi:
        print(*mpi_options(windows=args.windows))
        return Exit.OK
    if args.hydra:
        print(*hydra_options())
        return Exit.OK
    variables = environment(rc=args.rc)
    if args.env:
        for name, value in variables.items():
            print(f"export {name}={shlex.quote(value)}")
        return Exit.OK
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise UsageError(args.prog, f"name the program to run; see {args.prog} --help")
    if code := refused(args.prog, words[0]):
        return code
    _await_agent(args)
    _check_options(args)
    return become(args.prog, words, os.environ | variables)


def _await_agent(args: argparse.Namespace) -> None:
    """Returns when an agent answers. If there is none, starts one that ends when it has no program
    for some time. Raises ConfigError.
    """
    name = agent_socket.name_of(os.environ)
    deadline = time.monotonic() + _START_SECONDS
    started: subprocess.Popen[bytes] | None = None
    with tempfile.TemporaryFile() as errors:  # the agent outlives the program and its terminal
        late = False
        while not agent_socket.answers(name, max(deadline - time.monotonic(), _LAST_LOOK_SECONDS)):
            if late:  # its last time to answer began after the deadline: this process has run
                raise ConfigError(
                    f"no agent answered at socket {name} within {digits(_START_SECONDS)} s"
                )
            late = time.monotonic() > deadline
            if agent_socket.is_open(name):
                pass  # it answers soon, or ends
            elif started is None:
                started = _start_agent(args, errors)
            elif started.poll() is not None:
                errors.seek(0)
                why = errors.read().decode(errors="replace").strip().removeprefix("mrc agent: ")
                raise ConfigError(f"the agent did not start: {why}")
            time.sleep(_LOOK_SECONDS)


def _check_options(args: argparse.Namespace) -> None:
    """Raises ConfigError if the agent was started with other options than those given here."""
    name = agent_socket.name_of(os.environ)
    options = agent_socket.profiles(name).options
    for option, value in agent.given(args).items():
        if options.get(option) != value:
            raise ConfigError(
                f"{option}: the agent that runs (process {agent_socket.agent_pid(name)}) has"
                f" another: end it, or leave out {option}"
            )


def _start_agent(args: argparse.Namespace, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    if args.code and endpoint.CODE not in os.environ:
        raise ConfigError(
            f"--code: start mrc agent --code first, which prints the code, or set"
            f" {endpoint.CODE} to that of the other host"
        )
    ours = args.command_line[1:]
    ours = ours[: ours.index("--")] if "--" in ours else ours[: len(ours) - len(args.words)]
    ours = [word for word in ours if word != "--rc"]  # an agent serves programs with and without it
    serve = ["agent", "--idle", _IDLE_SECONDS, "--quiet", *ours]
    command = [sys.executable, "-P", "-m", "mrc", *serve]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
        start_new_session=True,
    )  # fmt: skip
