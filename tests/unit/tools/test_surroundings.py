# SPDX-License-Identifier: Apache-2.0
"""What programs of tests find around them: no terminal, and no file of the user."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from cbuild import ROOT
from slowness import PATIENCE
from terminals import terminal

from mrc.testbed import rootless

LOOK = """
import os
try:
    print("terminal:", os.ttyname(os.open("/dev/tty", os.O_RDWR)))
except OSError:
    print("no terminal")
print(os.readlink("/proc/self/fd/0"))
"""


def test_program__has_no_terminal() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["no terminal", "/dev/null"]


def test_program__has_folders_of_its_own() -> None:
    home = pwd.getpwuid(os.geteuid()).pw_dir
    folders = [os.environ[name] for name in ("HOME", "TMPDIR", "XDG_RUNTIME_DIR")]
    assert len({*folders, home, "/tmp"}) == 5


def test_enter__joins_nothing_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    before = os.readlink("/proc/self/ns/user")
    assert rootless.enter(create=True)
    assert os.readlink("/proc/self/ns/user") == before


SHELL = ("sh", "-c", 'trap : INT; "$@"; exit $?', "sh")


@pytest.mark.parametrize("shell", [(), SHELL], ids=["leader", "job"])
def test_leave_terminal__interrupts_still_come(shell: tuple[str, ...], tmp_path: Path) -> None:
    """Pytest in a terminal, also as the first process there, which leads the session."""
    (tmp_path / "test_it.py").write_text(
        f"import subprocess, sys, time\n"
        f"def test_it():\n"
        f"    subprocess.run([sys.executable, '-c', {LOOK!r}])\n"
        f"    while True:\n"  # a pause could begin just after the signal, and miss it
        f"        time.sleep(0.01)\n"
    )
    words = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "conftest",
             "-p", "no:cacheprovider", "-n", "0", "-s", tmp_path / "test_it.py"]  # fmt: skip
    folders = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    with terminal() as term, term.running(*shell, *words, PYTHONPATH=folders) as process:
        term.until("no terminal")
        term.press("\x03")
        term.until("KeyboardInterrupt")
        assert process.wait(PATIENCE) == 2
