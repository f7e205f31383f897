# SPDX-License-Identifier: Apache-2.0
"""Test beds: hosts, T0s and T1s as network namespaces, with faults to order."""

from __future__ import annotations

from mrc.testbed.bed import Testbed
from mrc.testbed.names import DEFAULT_NAME
from mrc.testbed.shape import DEFAULT_RATE, Fabric, Shape
from mrc.testbed.targets import Fault, Mode, parse_loss

__all__ = [
    "Testbed",
    "Shape",
    "Fabric",
    "Fault",
    "Mode",
    "parse_loss",
    "DEFAULT_NAME",
    "DEFAULT_RATE",
]
