# SPDX-License-Identifier: Apache-2.0
"""Whole programs of several hosts in one process and in virtual time, by seeds: see README.md.

The simulated kernel takes the place of the compiled engine, so it comes before anything of `mrc`.
"""

from virtual import kernel as kernel
