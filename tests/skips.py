# SPDX-License-Identifier: Apache-2.0
"""What is skipped, and why. In CI (MRC_CI=1) a skip fails, unless `skips.toml` has its reason.

Each run of pytest leaves its counts in the folder MRC_TEST_RESULTS. At the end, `tools/test` runs
this file, which adds them up in one line: what was skipped, and what would bring it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("skips.toml")
GREEN, RED, PLAIN = "\033[32m", "\033[31m", "\033[0m"


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


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    yield
    folder = os.environ.get("MRC_TEST_RESULTS") or None
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if folder is None or reporter is None or hasattr(session.config, "workerinput"):
        return
    counts = {name: len(reporter.stats.get(name, ())) for name in ("passed", "failed", "error")}
    skipped = Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in reporter.stats.get("skipped", ())
    )
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
        json.dump({"counts": counts, "skipped": skipped}, file)


def closing_line(runs: Iterable[Path], seconds: str, *, failed: bool) -> str:
    """What several runs of pytest say together. A reason ends with a command that brings what is
    missing, if there is one: those of one installer become one command.
    """
    counts, skipped = Counter[str](), Counter[str]()
    for path in runs:
        run = json.loads(path.read_text())
        counts += Counter(run["counts"])
        skipped += Counter(run["skipped"])
    parts = [f"{counts['passed']} passed"]
    parts += [f"{counts[name]} {name}" for name in ("failed", "error") if counts[name]]
    line = f"{'red' if failed else 'green'}: {', '.join(parts)} in {seconds} s"
    if not skipped:
        return f"{line}, none skipped"
    packages: dict[str, set[str]] = {}
    brought, others = Counter[str](), Counter[str]()
    for reason, count in skipped.items():
        found = re.search(r"\b(apt-get|pip) install ((?:[a-z0-9][\w+.-]*(?: |$))+)", reason)
        if found is None:
            others[reason.partition(":")[0]] += count
        else:
            brought[found[1]] += count
            packages.setdefault(found[1], set()).update(found[2].split())
    whys = [f"{count}: {tool} install {' '.join(sorted(packages[tool]))}"
            for tool, count in sorted(brought.items())]  # fmt: skip
    whys += [f"{count}: {reason}" for reason, count in sorted(others.items())]
    return f"{line}; {skipped.total()} skipped ({'; '.join(whys)})"


def main() -> None:
    folder, seconds, status = sys.argv[1:]
    failed = status != "0"
    line = closing_line(Path(folder).iterdir(), seconds, failed=failed)
    if sys.stdout.isatty():
        line = f"{RED if failed else GREEN}{line}{PLAIN}"
    print(f"test: {line}")


if __name__ == "__main__":
    main()
