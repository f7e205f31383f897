# SPDX-License-Identifier: Apache-2.0
"""What holds for every test."""

from __future__ import annotations

import hypothesis

# The same examples in every run; how long one takes says nothing on a busy machine.
hypothesis.settings.register_profile("mrc", derandomize=True, deadline=None)
hypothesis.settings.load_profile("mrc")
