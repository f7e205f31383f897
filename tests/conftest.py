# SPDX-License-Identifier: Apache-2.0
"""Settings for every test."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import hypothesis
import pytest
from skips import pytest_make_collect_report, pytest_runtest_makereport, pytest_sessionfinish

# Tests of whole programs, most of them in namespaces: one of each capability is marked `default`,
# and the others become `more`, as do those that read the project's own text.
MORE = (
    *("attack", "hostile", "netns", "training", "verbs"),
    *("test_layers.py", "test_mirror.py", "test_rooms.py", "test_tidy.py"),
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    for item in items:
        if item.path.relative_to(tests).parts[0] in MORE and not (
            item.get_closest_marker("default") or item.get_closest_marker("slow")
        ):
            item.add_marker(pytest.mark.more)


def pytest_runtest_teardown() -> None:
    """A command that ran in this process froze its objects, where Hypothesis no longer finds them:
    on Python 3.14 it warns.
    """
    gc.unfreeze()


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """An empty folder for a receiver."""
    path = tmp_path / "inbox"
    path.mkdir()
    return path


__all__ = [  # hooks of pytest
    "pytest_make_collect_report",
    "pytest_runtest_makereport",
    "pytest_sessionfinish",
]
