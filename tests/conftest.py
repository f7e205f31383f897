# SPDX-License-Identifier: Apache-2.0
"""Settings for every test."""

from __future__ import annotations

import os

import hypothesis

# The same examples in every run, and no deadline: times mean nothing on a busy machine.
hypothesis.settings.register_profile("mrc", derandomize=True, deadline=None)
hypothesis.settings.load_profile("mrc")

# Commands of tests neither encrypt nor ask; the tests of trust take this away.
os.environ["MRC_INSECURE"] = "1"
