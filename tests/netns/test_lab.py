# SPDX-License-Identifier: Apache-2.0
"""The lessons on test beds: their commands, as they stand there, show what the pages say."""

from __future__ import annotations

import re
from math import ceil
from pathlib import Path

import pytest
from netns.apart import run_apart
from slowness import limit

from mrc.cli.lab import lesson

SEES = {
    1: [
        r"8 of 8 paths are good",
        r"planes 1: 2\d% 2: 2\d% 3: 2\d% 4: 2\d%",
        r"h0>t0:1.0 .* Mbit/s",
        r"via fcbb:1:10[01]:201:e000:: ev \w+ WRITE",
    ],
    2: [
        r"2: \d+% \(suspended\)",
        r"longest gap",
        r"plane 2 suspended, SILENCE",
        r"plane 2 resumed, PROBES",
        r"p2   suspended 2/2",
        r"p2   up  .* Mbit/s",
        r"100% packet loss",
        r"3 of 4 planes and 6 of 8 paths",
    ],
    3: [
        r"t0:1.0>t1:1.2 .* marked [1-9]",
        r"t0:1.0>t1:1.0 .* marked 0\n",
        r"h1 +1 +t1:1.2",
    ],
    4: [
        r" [1-9]\d+ trimmed",
        r"WRITE_\w+ .* bytes 0 of",
        r"NACK .* TRIMMED",
        r"t0:1.0>h0",
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", SEES)
def test_lesson__shows_what_its_page_says(number: int, tmp_path: Path) -> None:
    script = re.sub(r"(mrc perf .*-t )(\d+)", _longer, lesson(number).commands)
    done = run_apart(script, tmp_path, "-mx")
    for pattern in SEES[number]:
        assert re.search(pattern, done.stdout), (pattern, done.stdout, done.stderr)
    assert "lab is down" in done.stdout
    assert not re.search(r"Traceback|usage:|not found|syntax error|no such job", done.stderr)


def _longer(found: re.Match[str]) -> str:
    """On a busy machine the commands that look at what runs need longer until they look."""
    return f"{found[1]}{min(5, ceil(limit(1))) * int(found[2])}"
