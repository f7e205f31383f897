# SPDX-License-Identifier: Apache-2.0
"""Performance tests between two hosts: what `mrc perf` does, for programs."""

from mrc.perf.client import Client, TestResult, connect
from mrc.perf.histogram import Histogram, Latency
from mrc.perf.history import EvChange, History, PlaneChange, ShareChange
from mrc.perf.messages import Outcome, RefusedError
from mrc.perf.meter import Interval
from mrc.perf.plan import Direction, Pattern, Plan
from mrc.perf.server import Server

__all__ = [
    "Client",
    "Direction",
    "EvChange",
    "Histogram",
    "History",
    "Interval",
    "Latency",
    "Outcome",
    "Pattern",
    "Plan",
    "PlaneChange",
    "RefusedError",
    "Server",
    "ShareChange",
    "TestResult",
    "connect",
]
