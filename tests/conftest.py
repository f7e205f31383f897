# SPDX-License-Identifier: Apache-2.0
"""Settings for every test."""

from __future__ import annotations

import hypothesis

# The same examples in every run, and no deadline: times mean nothing on a busy machine.
hypothesis.settings.register_profile("mrc", derandomize=True, deadline=None)
hypothesis.settings.load_profile("mrc")
