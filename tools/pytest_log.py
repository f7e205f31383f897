# SPDX-License-Identifier: Apache-2.0
"""Reads what runs of pytest have printed, also in a run that was cut off (with -v)."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ONE_TEST = re.compile(r"^(\S+::.+?) (PASSED|FAILED|SKIPPED|ERROR)\b.*\[ *\d+%\]$", re.MULTILINE)
SUMMARY = re.compile(
    r"^=+ (.*\d+ (?:passed|failed|skipped|errors?|deselected)\b.*) =+$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of the runs."""

    counts: Counter[str]  # of tests by result: passed, failed, skipped, error
    failed: list[str]
    skipped: list[str]
    ended: bool  # False: no summary was printed

    @property
    def summary(self) -> str:
        return ", ".join(f"{count} {result}" for result, count in sorted(self.counts.items()))


def outcome(text: str) -> Outcome:
    text = COLOUR.sub("", text.replace("\r", ""))
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", text, re.MULTILINE)
    skipped = re.findall(r"^SKIPPED (.*)$", text, re.MULTILINE)
    counts: Counter[str] = Counter()
    if summaries := SUMMARY.findall(text):
        for count, result in re.findall(
            r"(\d+) (passed|failed|skipped|error)", "\n".join(summaries)
        ):
            counts[result] += int(count)
        return Outcome(counts, failed, skipped, ended=True)
    done = ONE_TEST.findall(text)
    counts.update(result.lower() for _, result in done)
    cut = [name for name, result in done if result in ("FAILED", "ERROR")]
    return Outcome(counts, cut or failed, skipped, ended=False)
