# SPDX-License-Identifier: Apache-2.0
"""Test beds: hosts, T0s and T1s as network namespaces, with faults to order."""

from __future__ import annotations

from mrc.testbed.bed import Testbed
from mrc.testbed.fault import Fault, Mode
from mrc.testbed.names import DEFAULT_NAME
from mrc.testbed.shape import DEFAULT_RATE, Fabric, Shape

__all__ = [
    "Testbed",
    "Shape",
    "Fabric",
    "Fault",
    "Mode",
    "DEFAULT_NAME",
    "DEFAULT_RATE",
]
