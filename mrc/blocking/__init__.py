# SPDX-License-Identifier: Apache-2.0
"""mrc for scripts without asyncio: the same names, with calls that block.

    with mrc.blocking.open() as context, context.register(data) as region:
        with context.connect("h1") as qp:
            qp.write(region, handle)

What `mrc` awaits returns here when it is done; an Opening is open at once; what `mrc` iterates with
`async for` is iterated with `for`; a future has `result()`. Arguments, results and errors are the
same. Any thread may call, and Ctrl-C interrupts a wait.

Nothing is declared here: each class is made from that of `mrc`. Type checkers read __init__.pyi,
which `tools/stubs` writes from the same declarations.
"""

from mrc.blocking.mirror import names
from mrc.lazy import directory

__getattr__ = names("mrc")
__dir__ = directory(__name__)
