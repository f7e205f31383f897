# SPDX-License-Identifier: Apache-2.0
"""Gives the wire tests the C codec."""

from __future__ import annotations

import sys

import cbuild
import hypothesis
import pytest
from wire.codec import Codec

sys.path.append(str(cbuild.ROOT / "tools"))  # for mrc_layers

# The same examples in every run; how long one takes says nothing on a busy machine.
hypothesis.settings.register_profile("mrc", derandomize=True, deadline=None)
hypothesis.settings.load_profile("mrc")


@pytest.fixture(scope="session")
def codec() -> Codec:
    return Codec()
