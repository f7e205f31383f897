# SPDX-License-Identifier: Apache-2.0
"""Tests on a test bed: pytest bed_test.py. The fixture `mrc_bed` comes with mrc.

Each host is a Context of the test itself. The bed is of network namespaces on this machine, and
needs no root where user namespaces are allowed.
"""

from __future__ import annotations

from typing import Any

import pytest

import mrc


@pytest.mark.parametrize("target", ["plane:2", "t1:1.0"])
def test_write__arrives_although_a_part_fails(mrc_bed: Any, target: str) -> None:
    bed, inbox = mrc_bed(planes=2, rate="200mbit"), bytearray(1 << 20)
    with (
        bed.host("h0").context() as here,
        bed.host("h1").context() as there,
        there.register(inbox, writable=True) as region,
        there.listen(private=region.handle.to_dict()),
        here.register(b"x" * len(inbox)) as message,
        here.connect("h1") as qp,
        bed.fail(target),
    ):
        qp.write(message, mrc.RemoteMemory.from_dict(qp.peer.private))
        assert inbox == b"x" * len(inbox)


def test_ping__in_a_host(mrc_bed: Any) -> None:
    bed = mrc_bed(planes=2, rate="200mbit")
    assert bed.host("h0").run(["ping", "-c", "1", "h1.p2"]).returncode == 0
