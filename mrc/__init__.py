# SPDX-License-Identifier: Apache-2.0
"""MRC (Multipath Reliable Connection) in software: remote writes sprayed over many paths.

    async with mrc.open() as context, context.register(data) as region:
        async with context.connect("h1") as qp:
            await qp.write(region, remote)

Import every public name from here: submodules may move between releases. A name is loaded at its
first use. `mrc.blocking` is for scripts without asyncio; `mrc.examples` has programs to start from.
"""

from mrc.lazy import directory, names

_load = names(__name__)
__dir__ = directory(__name__)


def __getattr__(name: str) -> object:
    if name != "__version__":
        return _load(name)
    from importlib.metadata import version

    value = globals()[name] = version("mrc-transport")
    return value
