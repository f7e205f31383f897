# SPDX-License-Identifier: Apache-2.0
"""Gives the wire tests the C codec."""

from __future__ import annotations

import sys

import cbuild
import pytest
from wire.codec import Codec

sys.path.append(str(cbuild.ROOT / "tools"))  # for mrc_layers


@pytest.fixture(scope="session")
def codec() -> Codec:
    return Codec()
