# SPDX-License-Identifier: Apache-2.0
"""One future for a batch of work requests: a future for each would cost more than the posting."""

from __future__ import annotations

import asyncio

from mrc.events import Completion


class Batch:
    """Collects the completions of `count` work requests of a QP. They come in the order of posting.

    The dispatcher uses it like the future of a single work request.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        self.future: asyncio.Future[list[Completion]] = loop.create_future()
        self._left = count
        self._completions: list[Completion] = []
        if count == 0:
            self.future.set_result([])

    def done(self) -> bool:
        """True when nobody waits any more: after the first error, or when the caller gave up."""
        return self.future.done()

    def set_result(self, completion: Completion) -> None:
        """The next work request succeeded."""
        self._completions.append(completion)
        self._left -= 1
        if self._left == 0:
            self.future.set_result(self._completions)

    def set_exception(self, error: BaseException) -> None:
        """A work request failed: so does the batch."""
        self.future.set_exception(error)
