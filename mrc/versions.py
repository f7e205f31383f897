# SPDX-License-Identifier: Apache-2.0
"""Versions of the exchange and of file transfers."""

from __future__ import annotations

EXCHANGE = 3
TRANSFER = 6
DIGEST = "xxh3_128"  # of a transferred file
