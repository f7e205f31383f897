# SPDX-License-Identifier: Apache-2.0
"""What is skipped, and why. In CI (MRC_CI=1) a skip fails, unless `skips.toml` has its reason."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("skips.toml")


def allowed() -> dict[str, str]:
    """How the reasons begin for which a test may be skipped; each with the cause."""
    table: dict[str, str] = tomllib.loads(LIST.read_text())["allowed"]
    return table


def mark(
    items: list[pytest.Item], folder: Path, missing: Callable[[], str | None], *marks: str
) -> None:
    """Marks the tests of a folder, and skips them all if something is missing, with that reason."""
    ours = [item for item in items if str(item.path).startswith(f"{folder}{os.sep}")]
    reason = missing() if ours else None
    for item in ours:
        for name in marks:
            item.add_marker(getattr(pytest.mark, name))
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


def judge(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Makes a failure of a skip for another reason."""
    if not os.environ.get("MRC_CI") or not report.skipped or hasattr(report, "wasxfail"):
        return
    assert isinstance(report.longrepr, tuple)
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if not reason.startswith(tuple(allowed())):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {reason}\nInstall what it needs, or list it in {LIST}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    judge(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    judge(report)
    return report
