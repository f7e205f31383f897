# SPDX-License-Identifier: Apache-2.0
"""Gives the wire tests the C codec."""

from __future__ import annotations

import pytest
from wire.codec import Codec


@pytest.fixture(scope="session")
def codec() -> Codec:
    return Codec()
