# SPDX-License-Identifier: Apache-2.0
"""The faults of a scenario on a test bed, each at its time."""

from __future__ import annotations

import time
from typing import Any

import pytest
from msgspec.structs import replace
from unit.workload.scenes import EMULATED, SHAPE, scenario

from mrc.errors import ConfigError
from mrc.fabric.targets import Target
from mrc.testbed.faults import Fault
from mrc.testbed.plan import make_plan
from mrc.testbed.shape import Shape
from mrc.workload.run import Faults, fault_differences, scheduled_faults

LINK = "link:h0.2"


class FakeBed:
    """Records the calls to a test bed and their times."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.plan = shape, make_plan("x", shape)
        self.told: list[tuple[float, str, Fault | None]] = []

    def set_faults(self, wanted: dict[Target, Fault], ready: Any = lambda: None) -> None:
        ready()
        now = time.monotonic()
        self.told += [(now, str(target), fault) for target, fault in wanted.items()]

    def heal(self, target: str, ready: Any = lambda: None) -> None:
        ready()
        self.told.append((time.monotonic(), target, None))


def test_scheduled__adds_what_is_missing() -> None:
    """A scenario sets the delay of a link; a test bed adds to it."""
    part = scenario(
        EMULATED,
        faults=[
            {"target": LINK, "kind": "delay", "delay": "5ms"},
            {"target": LINK, "kind": "jitter", "jitter": "2ms"},
            {"target": "plane:1", "kind": "rate", "rate": "50%"},
        ],
    )
    plan = make_plan("x", EMULATED)
    assert [each.fault for each in scheduled_faults(part, plan)] == [
        Fault(loss=0, delay_ns=4_800_000),
        Fault(loss=0, jitter_ns=2_000_000),
        Fault(loss=0, rate_share=0.5),
    ]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"kind": "lose", "n": 1, "of": 9}, "lose is only for mrc sim"),
        ({"kind": "loss", "share": "1%", "packets": "control"}, "packets = 'control'"),
        ({"kind": "silent", "at": "1ms", "until": "1100us"}, r"less than the 50 ms .* --scale"),
    ],
)
def test_scheduled__what_no_bed_can_do(fault: dict[str, Any], said: str) -> None:
    part = scenario(faults=[{"target": LINK, **fault}])
    with pytest.raises(ConfigError, match=said):
        scheduled_faults(part, make_plan("x", SHAPE))


def test_happen__each_at_its_time() -> None:
    part = scenario(
        faults=[
            {"target": "plane:1", "kind": "rate", "rate": "10%", "at": "1ms", "until": "2ms"},
            {"target": LINK, "kind": "silent"},
        ],
        run={"until": "3ms"},
    )
    fake: Any = FakeBed(SHAPE)
    faults = Faults(fake, part)
    faults.begin()
    assert [target for _, target, _ in fake.told] == [LINK]
    start = time.monotonic()
    events: list[Any] = []
    faults.happen(round(start * 1e9), lambda event, _: events.append(event))
    (began, _, fault), (over, _, healed) = fake.told[1:]
    assert (fault, healed) == (Fault(loss=0, rate_share=0.1), None)
    assert began - start >= 0.1 and over - start >= 0.2
    assert len(events) == 2 and faults.late_ns >= 0
    faults.heal()
    assert fake.told[-1][1:] == (LINK, None)


def test_happen__ends_with_the_run() -> None:
    """What still fails then is healed."""
    part = scenario(faults=[{"target": "plane:1", "kind": "silent", "at": "100us"}])
    fake: Any = FakeBed(SHAPE)
    faults = Faults(fake, part)
    faults.happen(time.monotonic_ns(), lambda *_: faults.end())
    assert [(target, fault) for _, target, fault in fake.told] == [
        ("plane:1", Fault()), ("plane:1", None),
    ]  # fmt: skip
    Faults(fake, part).end()


def test_happen__not_after_the_end() -> None:
    part = scenario(faults=[{"target": "plane:1", "kind": "silent", "at": "1ms"}])
    fake: Any = FakeBed(SHAPE)
    faults = Faults(fake, part)
    faults.end()
    faults.happen(time.monotonic_ns(), lambda *_: None)
    assert fake.told == []


def test_differ__where_the_simulator_counts_links() -> None:
    part = scenario(faults=[{"target": LINK, "kind": "loss", "share": "1%"}])
    assert fault_differences(part.faults) == []
    (line,) = fault_differences([replace(part.faults[0], target="plane:1")])
    assert line.startswith("plane:1 loss: a test bed applies it once")
