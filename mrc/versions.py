# SPDX-License-Identifier: Apache-2.0
"""Versions of the exchange and of file transfers, and the port of both."""

from __future__ import annotations

EXCHANGE = 3
TCP_PORT = 4791  # where programs listen that are not told another one
TRANSFER = 6
DIGEST = "xxh3_128"  # of a transferred file
