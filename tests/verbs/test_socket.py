# SPDX-License-Identifier: Apache-2.0
"""libmrc does not trust an agent of another user."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from processes import USER, needs_root, squatting
from verbs.building import LIBRARY

from mrc.agent import socket as agent_socket

pytestmark = pytest.mark.default

NAME = f"@mrc-test-socket-{os.getpid()}"
_PROGRAM = """\
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
count = ctypes.c_int()
lib.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
lib.ibv_get_device_name.restype = ctypes.c_char_p
lib.ibv_get_device_name.argtypes = [ctypes.c_void_p]
found = lib.ibv_get_device_list(ctypes.byref(count))
print(*(lib.ibv_get_device_name(found[i]).decode() for i in range(count.value)))
"""


@needs_root
@pytest.mark.parametrize(("user", "sees"), [(0, True), (USER, False)])
def test_device__is_there_if_its_agent_is_trusted(user: int, *, sees: bool) -> None:
    environment = os.environ | {agent_socket.ENVIRONMENT: NAME}
    with squatting(NAME, user):
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(LIBRARY)], env=environment, text=True,
            capture_output=True, check=True,
        )  # fmt: skip
    assert ("mrc0" in done.stdout.split()) is sees
