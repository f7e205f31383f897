# SPDX-License-Identifier: Apache-2.0
"""MRC (Multipath Reliable Connection) in software: remote writes sprayed over many paths.

    async with mrc.open() as context, context.register(data) as region:
        async with context.connect("h1") as qp:
            await qp.write(region, remote)

Import every public name from here: submodules may move between releases. A name is loaded at its
first use. `mrc.blocking` is for scripts without asyncio; `mrc.examples` has programs to start from.
"""

from importlib import import_module

_HOMES: dict[str, str] = {}  # once read


def _homes() -> dict[str, str]:
    """The module of each public name, as __init__.pyi lists them."""
    if not _HOMES:
        with open(__file__.rpartition(".")[0] + ".pyi", encoding="utf-8") as stub:
            lines = [line.split() for line in stub]
        _HOMES.update({words[3]: words[1] for words in lines if words[:1] == ["from"]})
    return _HOMES


def __getattr__(name: str) -> object:
    if name == "__all__":
        has = import_module("mrc.products").has
        value: object = [name for name, home in _homes().items() if has(home)]
    elif name == "__version__":
        value = import_module("importlib.metadata").version("mrc-transport")
    elif not name.startswith("_") and (home := _homes().get(name)):
        value = getattr(import_module(home), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value
