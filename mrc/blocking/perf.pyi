# SPDX-License-Identifier: Apache-2.0
# Written by tools/stubs from the declarations of mrc. Do not edit.
# ruff: noqa
from __future__ import annotations
from collections.abc import Callable
from mrc.blocking import Context
from mrc.blocking.mirror import Blocking
from mrc.config import ContextConfig
from mrc.perf import Interval as Interval
from mrc.perf import IntervalEvent as IntervalEvent
from mrc.perf import Latency as Latency
from mrc.perf import Perf as Perf
from mrc.perf import PerfEnd as PerfEnd
from mrc.perf import PerfServed as PerfServed
from mrc.perf import PlanRefusedError as PlanRefusedError
from mrc.perf import StartEvent as StartEvent
from mrc.perf import Test as Test
from mrc.perf import TestEvent as TestEvent
from mrc.perf import TestPlan as TestPlan
from mrc.perf.measurement import Progress

def measure(
    target: str,
    *,
    size: int | None = None,
    seconds: float | None = None,
    total_bytes: int | None = None,
    omit_seconds: float = 0.0,
    qps: int = 1,
    depth: int = 8,
    rate_bits_per_second: float = 0.0,
    reverse: bool = False,
    bidirectional: bool = False,
    latency: bool = False,
    sweep: bool = False,
    redundant: bool = False,
    bin_ns: int = 0,
    interval_seconds: float = 1.0,
    progress: Progress | None = None,
    timeout: float = 5.0,
    context: Context | None = None,
    config: ContextConfig | None = None,
) -> Perf: ...
def serve(
    host: str | None = None,
    port: int = 4791,
    *,
    one_off: bool = False,
    on_served: Callable[[PerfServed], object] | None = None,
    on_failed: Callable[[str, Exception], object] | None = None,
    context: Context | None = None,
    config: ContextConfig | None = None,
) -> Server: ...

class Server(Blocking):
    def until_closed(self) -> Exception | None: ...
    def close(self) -> None: ...

__all__: list[str]
