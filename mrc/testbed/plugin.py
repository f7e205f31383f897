# SPDX-License-Identifier: Apache-2.0
"""The plug-in for pytest: the fixture `mrc_bed`. Until a test asks for it, this does nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mrc.testbed.library import Bed


@pytest.fixture(scope="session")
def _mrc_beds() -> Iterator[dict[str, Bed]]:
    """The test beds of this session, by their arguments."""
    beds: dict[str, Bed] = {}
    yield beds
    for bed in beds.values():
        _wait(bed.close)


@pytest.fixture
def mrc_bed(
    request: pytest.FixtureRequest, _mrc_beds: dict[str, Bed]
) -> Iterator[Callable[..., Any]]:
    """A function that returns a test bed: `bed = mrc_bed(planes=2, rate="200mbit")`.

    Its arguments are those of `mrc.testbed.up`. Tests with the same arguments share the test bed,
    which is up until the end of the session; after each test it is healed. A test may call it
    several times. A coroutine gets an `mrc.testbed.Bed`, a function one of `mrc.blocking.testbed`.
    """
    used: list[Bed] = []

    def bed(*topology: Any, **options: Any) -> Any:
        from mrc.testbed.library import up  # pytest imports this module also where nobody uses it

        key = repr((topology, sorted(options.items())))
        if key not in _mrc_beds or _mrc_beds[key].closed:
            _mrc_beds[key] = _wait(lambda: up(*topology, **options))
        used.append(_mrc_beds[key])
        if inspect.iscoroutinefunction(inspect.unwrap(request.function)):
            return used[-1]
        from mrc.blocking.loop import CallerLoop
        from mrc.blocking.mirror import wrapped

        return wrapped(CallerLoop.current(), used[-1])

    yield bed
    for each in used:
        if not each.closed:
            _wait(each.heal)
            _wait(each.undrain)


def _wait(start: Callable[[], Any]) -> Any:
    """The result of a coroutine. It runs in a thread: a test may have an event loop here."""
    import asyncio

    from mrc.tasks import begun

    async def run() -> Any:
        return await start()

    return begun(asyncio.run, run()).result()
