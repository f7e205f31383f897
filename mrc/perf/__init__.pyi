# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: I001
# The public names of mrc.perf, as in mrc/__init__.pyi.
from mrc.perf.measurement import measure as measure
from mrc.perf.measurement import serve as serve
from mrc.perf.measurement import Server as Server
from mrc.perf.results import Perf as Perf
from mrc.perf.results import PerfServed as PerfServed
from mrc.perf.results import Test as Test
from mrc.perf.results import TestPlan as TestPlan
from mrc.perf.results import PerfEnd as PerfEnd
from mrc.perf.results import Interval as Interval
from mrc.perf.results import Latency as Latency
from mrc.perf.results import StartEvent as StartEvent
from mrc.perf.results import IntervalEvent as IntervalEvent
from mrc.perf.results import TestEvent as TestEvent
from mrc.perf.session import PlanRefusedError as PlanRefusedError

__all__: list[str]
