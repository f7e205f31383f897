# SPDX-License-Identifier: Apache-2.0
"""The order of what several rings capture."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from mrc.testbed import capture

SECOND_NS = 10**9


def test_run__orders_packets_also_after_a_pause_between_two_rings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the second ring is read for the first time, both get a packet."""
    start = now = 10**18
    left = {"p1": [(SECOND_NS // 2, b"first")], "p2": [(SECOND_NS * 3 // 4, b"second")]}

    class Ring:
        def __init__(self, namespace: str, interface: str) -> None:
            self.interface, self.descriptor = interface, os.eventfd(0)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            os.close(self.descriptor)

        def fileno(self) -> int:
            return self.descriptor

        def exists(self) -> bool:
            return True

        def dropped(self) -> int:
            return 0

        def read(self) -> Iterator[tuple[int, bytes, capture.Offload]]:
            nonlocal now
            now += SECOND_NS * (self.interface == "p2")
            while now > start and left[self.interface]:
                at, frame = left[self.interface].pop()
                yield start + at, frame, capture.Offload(0, 0, 0, 0, 0, 0)

    monkeypatch.setattr(capture, "Ring", Ring)
    monkeypatch.setattr(time, "time_ns", lambda: now)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    plan: Any = SimpleNamespace(nodes={"h0": SimpleNamespace(namespace="there")})
    ends = iter([False, True])
    with (tmp_path / "a.pcap").open("wb") as file:
        wanted = capture.Capture(file, 1 << 16, None)
        where = [("h0", "p1"), ("h0", "p2")]
        assert wanted.run(plan, where, lambda: None, lambda: next(ends)).packets == 2
    captured = (tmp_path / "a.pcap").read_bytes()
    assert captured.index(b"first") < captured.index(b"second")
