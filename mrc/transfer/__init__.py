# SPDX-License-Identifier: Apache-2.0
"""File transfer over writes: the sender writes chunks into the receiver's window of memory.

async with mrc.transfer.receive("inbox") as receiver:    # on one host
    async for received in receiver: ...

result = await mrc.transfer.send("photos", "host-b")     # on another
"""

from mrc.lazy import directory, names

__getattr__ = names(__name__)
__dir__ = directory(__name__)
