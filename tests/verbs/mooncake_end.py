# SPDX-License-Identifier: Apache-2.0
"""One end of Mooncake's transfer engine over the device mrc0; test_others.py runs two.

mooncake_end.py                 print port and address of its memory; print it after a line
mooncake_end.py PORT ADDRESS    READ the memory of the other end, then WRITE four bytes there
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
import sys

BYTES = 8 << 20
PATTERN = bytes(range(251)) * (BYTES // 251 + 1)


def main(words: list[str]) -> None:
    engine = importlib.import_module("mooncake.engine").TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "mrc0") == 0
    memory = mmap.mmap(-1, BYTES)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert engine.register_memory(address, BYTES) == 0
    if not words:
        memory[:] = PATTERN[:BYTES]
        print(engine.get_rpc_port(), address, flush=True)
        sys.stdin.readline()
        print(memory[:4].decode(), flush=True)
        return
    peer, there = f"127.0.0.1:{words[0]}", int(words[1])
    assert engine.transfer_sync_read(peer, address, there, BYTES) == 0
    assert memory[:] == PATTERN[:BYTES]
    memory[:4] = b"back"
    assert engine.transfer_sync_write(peer, address, there, 4) == 0


if __name__ == "__main__":
    main(sys.argv[1:])
