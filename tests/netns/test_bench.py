# SPDX-License-Identifier: Apache-2.0
"""The benchmarks in small: that they run, measure every contender and clean up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from mrc import netns

ROOT = Path(__file__).parents[2]
SMALL = ("--planes", "2", "--t1", "1", "--mib", "1", "--repeats", "1")


def test_goodput__measures_every_contender() -> None:
    command = [sys.executable, str(ROOT / "bench" / "goodput"), "--json", *SMALL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["schema"] == 1
    assert set(result["results"]) == {"mrc", "tcp, one flow", "tcp, a flow a plane"}
    wire_rate = 2 * 500e6
    for contender in result["results"].values():
        assert len(contender["rounds_bits_per_second"]) == 1
        # One MiB fits the shapers' buckets in part, so it may pass the rate for a moment.
        assert 0 < contender["median_bits_per_second"] < 4 * wire_rate
    assert not [name for name in netns.names() if "bench" in name]
