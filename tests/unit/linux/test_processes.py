# SPDX-License-Identifier: Apache-2.0
"""What the kernel tells of other processes."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from slowness import until

from mrc.linux.processes import Process, process


def test_process__its_name_and_whether_it_is_stopped(tmp_path: Path) -> None:
    program = tmp_path / "a) T (b"
    program.symlink_to("/bin/cat")
    with subprocess.Popen([program], stdin=subprocess.PIPE) as started:
        until(lambda: process(started.pid).name == program.name)
        assert not process(started.pid).is_stopped
        os.kill(started.pid, signal.SIGSTOP)
        until(lambda: process(started.pid).is_stopped)
        os.kill(started.pid, signal.SIGCONT)
        until(lambda: not process(started.pid).is_stopped)
        started.communicate()
    assert process(started.pid) == Process()
