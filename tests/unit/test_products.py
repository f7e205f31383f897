# SPDX-License-Identifier: Apache-2.0
"""The modules that the core names by strings: they exist, wherever their product is."""

from __future__ import annotations

import pytest

from mrc import products
from mrc.cli import schema

PLACES = [f"mrc.{place}" for places in schema.COMMANDS.values() for place in places]
MODULES = {
    *products.COMMANDS.values(),
    *products.FINDINGS,
    products.PAGE,
    products.KEEPER,
    products.READINGS,
    *(place.rpartition(".")[0] for place in PLACES),
}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_module__is_there_if_its_package_is(module: str) -> None:
    package = ".".join(module.split(".")[:2])
    assert products.has(module) or not products.has(package)


def test_load__of_a_product_that_is_not_there() -> None:
    assert products.load("mrc.absent.findings") is None
