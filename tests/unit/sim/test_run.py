# SPDX-License-Identifier: Apache-2.0
"""Runs of small scenarios: what is refused, what QPs know at the start, progress."""

from __future__ import annotations

from typing import Any

import pytest

from mrc.errors import ConfigError
from mrc.sim.native import EV_STATE
from mrc.sim.run import run
from mrc.sim.scenario import Scenario, parse_scenario


def scenario(**tables: dict[str, Any]) -> Scenario:
    values: dict[str, Any] = {
        "title": "t",
        "topology": {"hosts": 4, "planes": 2, "t0": 2, "t1": 4} | tables.get("topology", {}),
        "transport": tables.get("transport", {}),
        "traffic": [{"kind": "pairs", "pairs": [[0, 2]], "write": "64KiB"}],
        "faults": tables.get("faults", []),
    }
    return parse_scenario(values, "t", "t.toml")


@pytest.mark.parametrize(
    "topology",
    [
        {"host_rate": "20Tbit/s"},
        {"host_rate": "10kbit/s"},
        {"host_delay": "500ms"},
        {"wake": "10s"},
    ],
)
def test_refusal__rates_and_times_that_no_congestion_control_accepts(
    topology: dict[str, Any],
) -> None:
    """They aborted the process."""
    with pytest.raises(ConfigError, match="congestion control does not work at such rates"):
        run(scenario(topology=topology), 1)


def test_computed__as_probes_would_find_it() -> None:
    faults: dict[str, Any] = {"faults": [{"target": "t1:1.0", "kind": "silent", "at": "0ns"}]}
    probed = run(scenario(**faults), 1)
    computed = run(scenario(transport={"probed": "computed"}, **faults), 1)
    blind = run(scenario(transport={"probed": False}, **faults), 1)
    assert [each.infos[0].completed for each in (probed, computed, blind)] == [1, 1, 1]
    assert probed.infos[0].lost_packets == computed.infos[0].lost_packets == 0
    assert blind.infos[0].lost_packets > 0
    assert computed.infos[0].rtt_ns == pytest.approx(probed.infos[0].rtt_ns, rel=0.05)
    ends = [each.infos[0].last_ns for each in (probed, computed)]
    assert ends[0] == pytest.approx(ends[1], rel=0.05)
    bad = {(e.plane, e.path) for e in computed.events if e.type == EV_STATE and not e.receiver}
    assert bad <= {(1, 0)}


def test_progress__ends_with_all_bytes() -> None:
    seen: list[float] = []
    run(scenario(), 1, progress=lambda part, _: seen.append(part))
    assert seen == sorted(seen) and seen[-1] == 1


def test_trace__on_a_full_disk_is_an_error() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        run(scenario(), 1, trace="/dev/full")
