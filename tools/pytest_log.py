# SPDX-License-Identifier: Apache-2.0
"""Reads what pytest has printed, also in a run that was cut off (with -v)."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

ONE_TEST = re.compile(r"^(\S+::.+?) (PASSED|FAILED|SKIPPED|ERROR)\b.*\[ *\d+%\]$", re.MULTILINE)
SUMMARY = re.compile(r"^=+ (.*\d+ (?:passed|failed|skipped|error|deselected).*) =+$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a run."""

    summary: str  # empty: none was printed
    failed: list[str]
    skipped: list[str]


def outcome(text: str) -> Outcome:
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", text, re.MULTILINE)
    skipped = re.findall(r"^SKIPPED (.*)$", text, re.MULTILINE)
    if match := SUMMARY.search(text):
        return Outcome(match[1], failed, skipped)
    done = ONE_TEST.findall(text)
    counts = Counter(result.lower() for _, result in done)
    summary = ", ".join(f"{count} {result}" for result, count in sorted(counts.items()))
    return Outcome(
        f"until then {summary}" if done else "",
        [name for name, result in done if result in ("FAILED", "ERROR")] or failed,
        skipped,
    )
