# SPDX-License-Identifier: Apache-2.0
"""What killed runs of tests left is removed, and nothing of those that run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from project_text import ROOT
from slowness import PATIENCE

from mrc.linux import netns
from mrc.testbed import state

# Another run may have the same N once this process has ended: its pid tells them apart.
RUN = """
import os, sys
from mrc.linux import netns
from mrc.testbed.bed import Testbed
from netns.owner import owner

own = f"{owner()}{os.getpid()}"
netns.create(f"mrc-{own}-a")
with Testbed(own, planes=1, t1=1, fabric="emulated"):
    print(own, flush=True)
    sys.stdin.read()
netns.remove(f"mrc-{own}-a")
"""


@contextmanager
def running() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that makes a namespace and a test bed, and their name; it is killed."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests")))}
    command = [sys.executable, "-c", RUN]
    with subprocess.Popen(command, env=environment, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def left(name: str) -> tuple[int, bool]:
    """How many namespaces, and whether the folder of the test bed is there."""
    return sum(each.startswith(f"mrc-{name}-") for each in netns.names()), Path(
        state.folder(name)
    ).exists()


def test_owner__removes_what_killed_runs_left() -> None:
    with running() as (_, alive):
        with running() as (_, killed):
            before = left(killed)
            assert before == left(alive) and before[0] > 3 and before[1]
        # Whoever runs tests beside this one may have removed it by now.
        with running() as (_, later):
            assert (left(killed), left(alive)) == ((0, False), before)
    with running() as (last, name):
        assert left(alive) == left(later) == (0, False)
        last.communicate(timeout=PATIENCE)
        assert left(name) == (0, False)
