# SPDX-License-Identifier: Apache-2.0
"""What both ends report while a transfer runs."""

from __future__ import annotations

from mrc.results.transfer import TransferredFile
from mrc.transfer.batch import Batch, Total


def test_add__counts_what_all_batches_have() -> None:
    file = TransferredFile("a", 7, "0" * 32, "/a")
    total = Total()
    total.add(
        Batch((file,), 3, 2, 70, packed=True, resumed_bytes=5, hole_bytes=9, links=4), listed=True
    )
    total.add(Batch((file,), 1, 0, 7, packed=False, resumed_bytes=1, links=1), listed=False)
    assert total == Total(
        [file], count=4, folders=2, bytes=77, resumed_bytes=6, hole_bytes=9, links=5
    )
