# SPDX-License-Identifier: Apache-2.0
"""Test beds of network namespaces: hosts in which a Context of this program can be, and faults.

    async with mrc.testbed.up(planes=2, rate="200mbit") as bed:
        async with bed.host("h0").context() as context, bed.fail("plane:2"):
            ...

Import every public name from here: submodules may move between releases. A name is loaded at its
first use.
"""

from mrc.lazy import directory, names

__getattr__ = names(__name__)
__dir__ = directory(__name__)
