# SPDX-License-Identifier: Apache-2.0
"""What both ends report while a transfer runs."""

from __future__ import annotations

from mrc.transfer.results import StoredBatch, Total, TransferredFile

FILE = TransferredFile("a", 7, "0" * 32, "/a")


def test_add__counts_what_all_batches_have() -> None:
    total = Total()
    total.add(
        StoredBatch((FILE,), 3, 2, 70, packed=True, resumed_bytes=5, hole_bytes=9, links=4),
        listed=True,
    )
    total.add(StoredBatch((FILE,), 1, 0, 7, packed=False, resumed_bytes=1, links=1), listed=False)
    assert total == Total(
        {"a": FILE}, count=4, folders=2, bytes=77, resumed_bytes=6, hole_bytes=9, links=5
    )


def test_add__what_came_again_after_a_loss_counts_once() -> None:
    """A file may have changed meanwhile."""
    b, changed = TransferredFile("b", 1, "1" * 32, "/b"), TransferredFile("a", 9, "2" * 32, "/a")
    total = Total()
    total.add(StoredBatch((FILE,), 1, 1, 7, packed=True, links=1, others=("l", "in/")), listed=True)
    total.add(
        StoredBatch((changed, b), 2, 2, 10, packed=True, links=1, others=("l", "in/", "top/")),
        listed=True,
    )
    total.add(StoredBatch.of(b, resumed_bytes=1), listed=True)
    assert list(total.files.values()) == [changed, b]
    counts = total.count, total.folders, total.links, total.bytes, total.resumed_bytes
    assert counts == (2, 2, 1, 10, 0)
