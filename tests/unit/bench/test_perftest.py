# SPDX-License-Identifier: Apache-2.0
"""Results of `bench/perftest` from what the programs print."""

from __future__ import annotations

import perftest_figures as figures
import pytest
from figures import GOODPUT, P50, P99

LINE = "-" * 80
WRITE_BW = f"""{LINE}
 Number of qps   : 1\t\tTransport type : IB
{LINE}
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      10500            0.00               2.75\t\t   0.005246
{LINE}
"""
WRITE_LAT = f"""{LINE}
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec] ...
 2\t500\t28.67\t6057.28\t86.28\t244.03\t342.02\t1952.96\t6057.28
{LINE}
"""


def test_of_write_bw__the_average() -> None:
    assert figures.of_write_bw(WRITE_BW) == {GOODPUT: pytest.approx(2.75e9)}


def test_of_write_lat__the_median_and_the_tail() -> None:
    expected = {P50: pytest.approx(86280), P99: pytest.approx(1952960)}
    assert figures.of_write_lat(WRITE_LAT) == expected


@pytest.mark.parametrize("output", ["", "Completion with error\n", WRITE_BW + WRITE_BW])
def test_numbers__without_one_row_is_an_error(output: str) -> None:
    with pytest.raises(ValueError, match="rows of numbers"):
        figures.numbers(output)


def test_of_perf__goodput_or_latency() -> None:
    latency = {"p50_ns": 70000, "p99_ns": 90000, "max_ns": 100000}
    goodput = {"latency_of": "completion", "latency": latency}
    found = figures.of_perf({"results": [{"goodput_bits_per_second": 5e9, "client": goodput}]})
    assert found == {GOODPUT: 5e9}
    half = {"latency_of": "half round trip", "latency": latency}
    found = figures.of_perf({"results": [{"goodput_bits_per_second": 1e6, "client": half}]})
    assert found == {P50: 70000, P99: 90000}


def test_table__medians_with_their_spread() -> None:
    """The ratio is that of neighbours, not that of the medians."""
    theirs, ours = ([{GOODPUT: each * 1e9} for each in rounds] for rounds in ((1, 8, 3), (2, 4, 4)))
    latency = [{P50: 50e3, P99: 50e3}]
    rows = [figures.row(65536, theirs, ours), figures.row(2, latency, latency)]
    assert figures.table(rows, GOODPUT).splitlines() == [
        "Gbit/s  ib_write_bw  mrc perf   ratio",
        "64 KiB  3 (1 - 8)    4 (2 - 4)  0.75 (0.5 - 2)",
    ]
    assert figures.table(rows, P50).splitlines()[1].split() == [
        "2", "B", "50", "(50", "-", "50)", "50", "(50", "-", "50)", "1", "(1", "-", "1)",
    ]  # fmt: skip
