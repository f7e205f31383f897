# SPDX-License-Identifier: Apache-2.0
"""`mrc run` names why its agent does not start."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from mrc.cli import run
from mrc.cli.exits import Exit
from mrc.cli.main import main
from mrc.doctor import libraries

pytestmark = pytest.mark.skipif(
    libraries.why_missing(libraries.LIBMRC) is not None,
    reason="libmrc is not built: apt-get install libibverbs-dev",
)


def test_run__the_port_is_in_use() -> None:
    """The agent has its socket before its port."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = str(held.getsockname()[1])
        options = ["--insecure", "--bind", "127.0.0.1", "--port", port, "-B", "lo"]
        done = subprocess.run(
            [sys.executable, "-m", "mrc", "run", *options, "--", "true"],
            env={**os.environ, "MRC_AGENT": f"@mrc-test-run-{os.getpid()}"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        f"mrc run: the agent did not start: TCP port {port} is in use: choose another\n"
    )


@pytest.mark.skipif(
    libraries.why_missing(libraries.PROVIDER) is not None,
    reason="libmrc-fi is not built: apt-get install libfabric-dev",
)
def test_hydra__options_name_the_provider() -> None:
    words = run.hydra_options()
    assert words[::3] == ["-genv"] * (len(words) // 3)
    environment = dict(zip(words[1::3], words[2::3], strict=True))
    assert environment["FI_PROVIDER"] == environment["I_MPI_OFI_PROVIDER"] == "mrc"
    assert environment["FI_PROVIDER_PATH"] == str(libraries.FOLDER)


def test_run__windows_without_mpi(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--windows", "--", "true"]) == Exit.USAGE
    assert capsys.readouterr().err == "mrc run: --windows belongs to --mpi\n"


def test_environment__has_rc_only_by_choice() -> None:
    assert "MRC_RC" not in run.environment()
    assert run.environment(rc=True)["MRC_RC"] == "1"
