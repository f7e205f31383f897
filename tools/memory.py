# SPDX-License-Identifier: Apache-2.0
"""Measures the heap that the engine takes for a QP: what malloc counts around each call.

A program of its own, so that malloc begins without a cache: it counts what is there as in use.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from mrc.engine.native import ffi, lib
from mrc.enums import QpState

QPN, MAX_QPS, ROUNDS = 77, 1024, 9
MAPPED_FROM, TRIMMED_FROM = -3, -1  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of mallopt(3)
INFO = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")  # fmt: skip


class Mallinfo(ctypes.Structure):
    """struct mallinfo2."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in INFO)


libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Mallinfo
for threshold in (MAPPED_FROM, TRIMMED_FROM):
    libc.mallopt(threshold, 1 << 30)  # memory that is mapped would count in whole pages


def taken(work: Callable[[], int]) -> int:
    """Bytes of the heap that the work takes and keeps."""
    before = libc.mallinfo2()
    assert work() == 0
    after = libc.mallinfo2()
    return int(after.uordblks + after.hblkhd - before.uordblks - before.hblkhd)


def new_engine(ports: int) -> Any:
    return lib.mrc_engine_create(
        ffi.new("struct mrc_engine_config *", {"ports": ports, "max_qps": MAX_QPS})
    )


def qp_bytes(
    *, ports: int = 16, psns: int = 1024, requests: int = 256, immediates: int = 128,
    granted: int = 4096, evs: int = 8,
) -> int:  # fmt: skip
    """Bytes of a QP in RTS over four planes: with room for `ports`, a send window of `psns`, a send
    queue of `requests`, and `granted` PSNs for the peer. What QPs to one peer share is left out.
    """
    create = ffi.new("struct mrc_qp_create_attr *", {
        "qpn": QPN, "sq_depth": requests, "mpr": granted, "max_wimm": immediates,
    })  # fmt: skip
    rtr = ffi.new("struct mrc_qp_rtr_attr *", {"dest_qpn": 9, "rq_psn": 1})
    rts = ffi.new("struct mrc_qp_rts_attr *", {
        "sq_psn": 1, "path_mtu": 8844, "peer_mpr": psns, "peer_max_wimm": immediates,
        "timeout": 14, "retry_linear": 7, "retry_exp": 8,
    })  # fmt: skip
    paths, source = _paths(evs), ffi.new("struct mrc_peer_source[1]", [{"sport": 40000}])

    def move(engine: Any, state: QpState) -> int:
        return int(lib.mrc_qp_modify(engine, QPN, state, rtr, rts, 1))

    def measured() -> int:
        engine = new_engine(ports)
        found = taken(lambda: lib.mrc_qp_create(engine, create))
        found += taken(lambda: move(engine, QpState.INIT))
        found += taken(lambda: lib.mrc_qp_set_evs(engine, QPN, paths, evs))
        assert lib.mrc_qp_set_peer(engine, QPN, source, 1) == 0
        found += taken(lambda: move(engine, QpState.RTR))
        found += taken(lambda: move(engine, QpState.RTS))
        return found  # the engine stays: malloc keeps what is freed, and would not count it again

    return min(measured() for _ in range(ROUNDS))


def _paths(count: int) -> Any:
    made = ffi.new("struct mrc_ev_attr[]", count)
    for i, ev in enumerate(made):
        ev.port, ev.ev, ev.dport, ev.family = i % 4 + 1, (40000 + i) << 16, 4791, 6
        ev.src[0], ev.src[15] = 0xFD, ev.port
        ev.dst[0], ev.dst[11], ev.dst[15] = 0xFD, ev.port, i // 4 + 1
    return made


def each(count: float) -> str:
    """Two digits of it: the third depends on the holes that malloc found."""
    return f"{float(f'{count:.2g}'):.0f}" if count > 1 else f"{count:.1f}"


def rows() -> list[tuple[str, str]]:
    """What takes memory, and how many bytes."""
    usual, wide, narrow = qp_bytes(), qp_bytes(psns=128), qp_bytes(psns=128, granted=128)
    parts = {
        "each PSN of its send window (1024)": (qp_bytes(psns=4096), 4096 - 1024),
        "each work request of its send queue (256)": (qp_bytes(requests=4096), 4096 - 256),
        "each immediate (128)": (qp_bytes(immediates=1024), 1024 - 128),
        "each PSN that it grants to the peer (4096)": (usual + wide - narrow, 4096 - 128),
        "each port of the engine (16)": (qp_bytes(ports=32), 32 - 16),
        "each EV (8)": (qp_bytes(evs=256), 256 - 8),
    }  # fmt: skip
    engine = taken(lambda: int(new_engine(16) == ffi.NULL))
    return [
        ("a QP, with the numbers in brackets", f"{usual / 1024:.0f} KiB"),
        *((name, each((found - usual) / more)) for name, (found, more) in parts.items()),
        ("an engine for 1024 QPs", f"{engine / 2**20:.1f} MiB"),
    ]


def measured() -> list[tuple[str, str]]:
    """As `rows`, by a process of its own."""
    environ = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
    done = subprocess.run([sys.executable, __file__], env=environ, capture_output=True, check=True)
    return [(name, found) for name, found in json.loads(done.stdout)]


if __name__ == "__main__":
    print(json.dumps(rows()))
