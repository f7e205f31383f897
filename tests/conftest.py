# SPDX-License-Identifier: Apache-2.0
"""Settings for every test."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import walls
from cbuild import ROOT
from mounts import pytest_configure
from skips import pytest_make_collect_report, pytest_runtest_makereport, pytest_sessionfinish
from slowness import pytest_runtest_setup

from mrc import products
from mrc.linux import netns

# Tests of whole programs, most of them in namespaces: one of each capability is marked `default`,
# and the others become `more`, as do those that read the project's own text.
MORE = (
    *("attack", "hostile", "netns", "training", "verbs"),
    *("test_walls.py", "test_tidy.py"),
)

# The same examples in every run, and no deadline: times mean nothing on a busy machine.
hypothesis.settings.register_profile("mrc", derandomize=True, deadline=None)
hypothesis.settings.load_profile("mrc")

# Commands of tests neither encrypt nor ask; the tests of trust take this away.
os.environ["MRC_INSECURE"] = "1"

# Terminals of tests know colours and have a width of their own, whatever this one has.
os.environ["TERM"] = "xterm"
for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)

# A shell starts its background jobs with SIGINT ignored, and programs of tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Modes of files that tests expect do not depend on the umask of the user who runs them.
os.umask(0o022)


def leave_terminal() -> None:
    """Gives up the controlling terminal, before the workers of xdist start: no program of a test
    finds a person at /dev/tty. Standard input is that of pytest, which is /dev/null unless -s or
    --pdb needs it. ^C still comes: it goes to the process group.
    """
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return
    # The leader of a session would take the terminal from all its processes, and ^C with it.
    if os.getsid(0) == os.getpid() and (pytest_itself := os.fork()):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pytest_itself, 0)[1]) & 0xFF)
    fcntl.ioctl(terminal, termios.TIOCNOTTY)
    os.close(terminal)


leave_terminal()


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs of tests neither read nor change the files of the user who runs the tests. What they
    compile or download is kept in build/, for the next run.
    """
    tempfile.gettempdir()  # from now on the same in this process, where other users may enter
    cache = ROOT / "build" / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOME", "TMPDIR", "XDG_RUNTIME_DIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
            patch.delenv(name, raising=False)
        patch.setenv("XDG_CACHE_HOME", str(cache))
        yield


@pytest.fixture(scope="session", autouse=True)
def own_namespaces() -> Iterator[None]:
    """Commands that run in this process never join namespaces: that requires a process of a single
    thread, and the tests that follow would be there too. Every user is as root, who has none.
    """
    with pytest.MonkeyPatch.context() as patch:
        if (keeper := products.load(products.KEEPER)) is not None:
            patch.setattr(keeper, "enter", lambda *, create: True)
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--about", metavar="NAME", help="only tests of a product or package")


def _source(item: pytest.Item) -> Path:
    """The file that a test is written in; tests in C are run by tests/c/test_c.py."""
    called = getattr(item, "callspec", None)
    source = called and called.params.get("source")
    return source if isinstance(source, Path) and source.suffix == ".c" else item.path


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What --about leaves out is not even imported, unless tests in C run there."""
    name = config.getoption("--about")
    if not name or name not in walls.names() or not collection_path.match("test_*.py"):
        return None
    return (collection_path.stem != "test_c" and not walls.is_about(collection_path, name)) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if name := config.getoption("--about"):
        if name not in walls.names():
            raise pytest.UsageError(f"--about {name}: neither a product nor a package")
        known = {path: walls.is_about(path, name) for path in {_source(item) for item in items}}
        config.hook.pytest_deselected(items=[each for each in items if not known[_source(each)]])
        items[:] = [item for item in items if known[_source(item)]]
    folders = [ROOT / "tests" / name for name in MORE]
    for item in items:
        if any(folder in (item.path, *item.path.parents) for folder in folders) and not (
            item.get_closest_marker("default") or item.get_closest_marker("slow")
        ):
            item.add_marker(pytest.mark.more)


def pytest_runtest_teardown() -> None:
    """A command that ran in this process froze its objects, where Hypothesis no longer finds them:
    on Python 3.14 it warns.
    """
    gc.unfreeze()


@pytest.fixture
def quiet_loopback() -> Iterator[None]:
    """A loopback on which only the test sends: frames of others would fill the buffer of a capture
    while the test does not read.
    """
    if lacks := netns.lacks():
        pytest.skip(f"needs {lacks}: run as root")
    netns.create(name := f"mrc-quiet-{os.getpid()}")
    try:
        with netns.inside(name):
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
    finally:
        netns.remove(name)


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """An empty folder for a receiver."""
    path = tmp_path / "inbox"
    path.mkdir()
    return path


__all__ = [  # hooks of pytest
    "pytest_configure",
    "pytest_make_collect_report",
    "pytest_runtest_makereport",
    "pytest_runtest_setup",
    "pytest_sessionfinish",
]
