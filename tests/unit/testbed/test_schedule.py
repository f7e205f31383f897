# SPDX-License-Identifier: Apache-2.0
"""Scheduled faults: the contents of a file, and the order of its faults."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from mrc.errors import ConfigError
from mrc.testbed import build, schedule
from mrc.testbed.faults import Fault, Mode
from mrc.testbed.plan import make_plan
from mrc.testbed.schedule import combined
from mrc.testbed.shape import Fabric, Shape

EMULATED = make_plan("x", Shape(planes=2, fabric=Fabric.EMULATED))
KERNEL = make_plan("x", Shape(planes=2))
MS = 1_000_000


def table(target: str, kind: str, **keys: str) -> str:
    lines = [
        f'{key} = "{value}"' for key, value in {"target": target, "kind": kind, **keys}.items()
    ]
    return "\n".join(["[[faults]]", *lines, ""])


def happenings(tmp_path: Path, *tables: str, count: int = 100) -> list[tuple[float, str, str]]:
    """Time in ms, target, new fault of the target."""
    path = tmp_path / "faults.toml"
    path.write_text("\n".join(['title = "any other table is let alone"', *tables]))
    found = islice(schedule.fault_changes(schedule.load_faults(str(path), EMULATED)), count)
    return [(each.at_ns / MS, str(each.target), str(each.fault or "healed")) for each in found]


def test_events__one_after_the_other(tmp_path: Path) -> None:
    later = table("t1:1.0", "silent", at="2s", until="5s")
    first = table("link:h0.2", "down", at="1ms")
    assert happenings(tmp_path, later, first) == [
        (1, "link:h0.2", "down"), (2000, "t1:1.0", "silent"), (5000, "t1:1.0", "healed")
    ]  # fmt: skip


def test_events__of_the_whole_fabric(tmp_path: Path) -> None:
    everything = table("all", "silent", at="1ms", until="2ms")
    assert happenings(tmp_path, everything) == [(1, "all", "silent"), (2, "all", "healed")]


def test_events__the_smallest_mtu_counts(tmp_path: Path) -> None:
    first, later = (
        f'[[faults]]\ntarget = "t1:1.0"\nkind = "mtu"\nmtu = {mtu}\nat = "{at}"\nuntil = "3ms"\n'
        for mtu, at in ((3000, "1ms"), (1500, "2ms"))
    )
    assert happenings(tmp_path, first, later) == [
        (1, "t1:1.0", "MTU 3000"), (2, "t1:1.0", "MTU 1500"), (3, "t1:1.0", "healed")
    ]  # fmt: skip


def test_load__a_kernel_fabric_changes_more_slowly(tmp_path: Path) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(table("all", "silent", every="100ms", **{"for": "40ms"}))
    assert schedule.load_faults(str(path), EMULATED)
    with pytest.raises(ConfigError, match=r"up to 50 ms .* at least that, or --fabric emulated"):
        schedule.load_faults(str(path), KERNEL)


def test_events__of_a_flap_have_no_end(tmp_path: Path) -> None:
    flap = {"every": "300ms", "for": "100ms"}
    assert happenings(tmp_path, table("plane:2", "loss", share="1%", **flap), count=4) == [
        (0, "plane:2", "loss 1.00%"), (100, "plane:2", "healed"),
        (300, "plane:2", "loss 1.00%"), (400, "plane:2", "healed"),
    ]  # fmt: skip


def test_events__faults_of_one_target_act_together(tmp_path: Path) -> None:
    slow = table("plane:1", "rate", rate="10%", until="30ms")
    late = table("plane:1", "delay", delay="1ms", at="10ms", until="20ms")
    other = table("plane:1", "jitter", jitter="2us", at="20ms", until="30ms")
    assert happenings(tmp_path, slow, late, other) == [
        (0, "plane:1", "rate 10.00% of its own"),
        (10, "plane:1", "delay +1000 us, rate 10.00% of its own"),
        (20, "plane:1", "jitter 2 us, rate 10.00% of its own"),
        (30, "plane:1", "healed"),
    ]


def test_combined__chances_are_independent_and_down_is_down() -> None:
    half, slow = Fault(loss=0.5, rate_bps=7), Fault(loss=0, rate_bps=5, delay_ns=3, by_ns=9)
    assert combined([half, Fault(loss=0.5)]).loss == 0.75
    assert combined([half, slow]) == Fault(loss=0.5, delay_ns=3, rate_bps=5, by_ns=1_000_000)
    assert combined([half, Fault(Mode.DOWN)]) == Fault(Mode.DOWN)
    assert combined([half]) == half


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no [[faults]]"),
        ("faults = 1", "write [[faults]]"),
        (table("plane:9", "silent"), "faults[0].target: target plane:9: no plane 9"),
        (table("everything", "silent"), "target 'everything' is not all, plane:P"),
        (table("plane:1", "mask"), "faults[0].mask: is missing"),
        (table("plane:1", "silent", every="1s"), "faults[0].every: requires for, and"),
        (
            table("all", "silent", every="1ms", **{"for": "0.5ms"}),
            "faults[0].every: a change takes",
        ),
        (
            table("all", "silent", every="1s", **{"for": "996ms"}),
            "up to 5 ms in this test bed: set",
        ),
        (table("plane:1", "silent", packets="data"), "packets = 'data' is only for mrc sim"),
        (
            '[[faults]]\ntarget = "plane:1"\nkind = "lose"\nn = 1\nof = 2',
            "lose is only for mrc sim",
        ),
    ],
)
def test_load__refuses(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        schedule.load_faults(str(path), EMULATED)
    assert complaint in str(caught.value)


def test_load__refuses_what_this_kernel_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "has_netem", lambda plan: False)
    path = tmp_path / "faults.toml"
    path.write_text(table("plane:1", "duplicate", share="1%", by="1ms"))
    with pytest.raises(ConfigError, match="--fabric emulated"):
        schedule.load_faults(str(path), KERNEL)
    with pytest.raises(ConfigError, match="No such file"):
        schedule.load_faults(str(tmp_path / "none.toml"), KERNEL)
