# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from mrc.binding import native, writelist


def test_layout__is_that_of_the_c_struct() -> None:
    ffi = native.ffi
    assert ffi.sizeof("struct mrc_wr") == writelist._WR.size
    fields = ("wr_id", "local", "va", "lkey", "rkey", "bytes", "imm", "opcode", "unsignaled")
    packed = writelist._WR.pack(*range(1, 10))
    wr = ffi.cast("struct mrc_wr *", ffi.from_buffer(packed))
    assert [getattr(wr, field) for field in fields] == list(range(1, 10))
    for index, field in ((writelist._LOCAL, "local"), (writelist._VA, "va")):
        assert ffi.offsetof("struct mrc_wr", field) == 8 * index
    end = ffi.sizeof("struct mrc_wr") + writelist._UNSIGNALED
    assert ffi.offsetof("struct mrc_wr", "unsignaled") == end
