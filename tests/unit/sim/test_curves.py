# SPDX-License-Identifier: Apache-2.0
"""Results kept as the simulator wrote them: the same values, in little memory."""

from __future__ import annotations

import gc
import pickle
import tracemalloc
from typing import Any

import pytest

from mrc.sim import run as runs
from mrc.sim.run import SimRun, run
from mrc.sim.scenario import Scenario, parse_scenario
from mrc.sim.trials import run_trial, summarize

MOST_BYTES_A_HOST = 800  # in Python, with 6 samples; 3 KiB with an object for each flow and port


def permutation(hosts: int, share: str = "1%", **topology: Any) -> Scenario:
    values = {
        "title": "t",
        "topology": {"hosts": hosts, "planes": 8, "t0": 2, "t1": 2} | topology,
        "transport": {"probed": "computed"},
        "traffic": [{"kind": "permutation", "write": "256KiB"}],
        "faults": [{"target": "all", "kind": "loss", "share": share}],
        "checks": [
            {"measure": "goodput", "at_least": 0.1},
            {"measure": "slowest_flow", "at_least": 0.1},
            {"measure": "last_hop_busy", "at_least": 0.1},
        ],
    }
    return parse_scenario(values, "t", "t.toml")


@pytest.fixture(scope="module")
def result() -> SimRun:
    return run(permutation(8), 1)


def test_result__is_the_same_with_and_without_objects(
    result: SimRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_hand = summarize(run_trial(permutation(8), 1))
    monkeypatch.setattr(runs, "AT_HAND", 0)
    read_again = run(permutation(8), 1)
    assert list(read_again.curves) == list(result.curves) and read_again.curves[-1].bytes[-1]
    assert read_again.curves[1:3] == list(result.curves[1:3])
    assert list(read_again.retransmitted) == list(result.retransmitted)
    assert summarize(run_trial(permutation(8), 1)) == at_hand
    with pytest.raises(IndexError):
        read_again.curves[8]


def test_curve__ends_with_the_run(result: SimRun) -> None:
    for info, curve, again in zip(result.infos, result.curves, result.retransmitted, strict=True):
        assert curve.times_ns[-1] == result.stats.now_ns
        assert curve.bytes[-1] == info.received_bytes == 256 << 10
        assert again[-1] == info.retransmitted_packets
        assert list(curve.bytes) == sorted(curve.bytes)


def test_rows__travel_between_processes(result: SimRun) -> None:
    copy = pickle.loads(pickle.dumps(result))
    assert copy == result
    assert copy.infos[0] == result.infos[0] and copy.infos[-1] == result.infos[7]
    assert copy.infos[2:4] == [result.infos[2], result.infos[3]]
    assert copy.last_hops == result.last_hops


def test_last_hops__by_host_and_plane(result: SimRun) -> None:
    assert len(result.last_hops) == 8 * 8 == len(list(result.last_hops))
    assert all(port.busy_ns > 0 for port in result.last_hops.values())
    for key in ((8, 1), (0, 0), (0, 9)):
        assert key not in result.last_hops


@pytest.mark.more
def test_result__takes_little_memory_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "AT_HAND", 0)

    def held(hosts: int) -> int:
        scenario = permutation(hosts, "0%", t0=hosts // 32)
        gc.collect()
        tracemalloc.start()
        try:
            result = run(scenario, 1)
            gc.collect()
            assert result.stats.completed_writes == hosts
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    assert (held(512) - held(64)) / (512 - 64) < MOST_BYTES_A_HOST
