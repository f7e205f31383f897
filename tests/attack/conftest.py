# SPDX-License-Identifier: Apache-2.0
"""The hosts of the attacks, created once per module and always removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from attack import net as nets
from netns.conftest import missing_privilege
from netns.plain import namespaces
from skips import mark


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, Path(__file__).parent, missing_privilege, "netns")


@pytest.fixture(scope="module")
def hosts() -> Iterator[nets.Net]:
    made = nets.Net()
    with namespaces(*map(made.namespace, ("r", *nets.ADDRESSES))):
        made.build()
        yield made


@pytest.fixture
def net(hosts: nets.Net) -> Iterator[nets.Net]:
    """The hosts. Processes that a test starts in them end with the test."""
    try:
        yield hosts
    finally:
        hosts.end()
