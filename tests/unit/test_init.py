# SPDX-License-Identifier: Apache-2.0
"""The public names, and imports that work without the compiled engine."""

from __future__ import annotations

import subprocess
import sys

import pytest
from slowness import PATIENCE

import mrc


def test_public_names__are_all_there() -> None:
    for name in mrc.__all__:
        assert getattr(mrc, name) is not None


def test_public_names__no_others() -> None:
    with pytest.raises(AttributeError, match="'mrc' has no attribute 'Endpoint'"):
        mrc.Endpoint  # type: ignore[attr-defined]  # noqa: B018


_WITHOUT_ENGINE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in ("mrc._core", "mrc._sim", "mrc._emu"):
            raise ImportError(f"{name} is not compiled")

sys.meta_path.insert(0, Refuse())
"""

_HELLO = """
import mrc
from mrc.connect.oob import (Attributes, Hello, decode_body, encode_frame, hello_from_dict)
from mrc.connect.oob import hello_to_dict

attributes = Attributes(7, 1, 1024, 1024, 8, 'icrc', 4791, ())
said = hello_to_dict(Hello(host="h0", attributes=attributes))
try:
    hello_from_dict(decode_body(encode_frame(said)[4:]))
except mrc.ProtocolError as error:
    print(error)
try:
    mrc.Context
except ImportError as error:
    print(error)
"""


def without_engine(script: str) -> str:
    command = [sys.executable, "-c", _WITHOUT_ENGINE + script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_hello__can_be_read_without_the_engine() -> None:
    assert without_engine(_HELLO).splitlines() == [
        "the peer sent a wrong hello: "
        "attributes.ports: must be an array of 1 to 32, not an array of 0",
        "mrc._core is not compiled",
    ]
