# SPDX-License-Identifier: Apache-2.0
"""Test beds.

    async with mrc.testbed.up(planes=2, rate="200mbit") as bed, bed.host("h0").context() as here:
        ...
        async with bed.fail("plane:2"):
            await qp.write(region, remote)

Import every public name from here: submodules may move between releases. A name is loaded at its
first use.
"""

from importlib import import_module

_LIBRARY = ("up", "existing", "Bed", "Host")
_RESULTS = ("Drained", "Healed", "Injection", "Removed", "Status")


def __getattr__(name: str) -> object:
    if name not in _LIBRARY + _RESULTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "mrc.testbed.library" if name in _LIBRARY else "mrc.testbed.results"
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value
