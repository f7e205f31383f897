# SPDX-License-Identifier: Apache-2.0
"""Numbers with units, as scenarios write them."""

from __future__ import annotations

import pytest

from mrc.units import parse_rate, parse_share, parse_size, parse_time


@pytest.mark.parametrize(
    ("text", "ns"),
    [("0ns", 0), ("250 ns", 250), ("1.5us", 1500), ("2ms", 2_000_000), ("1s + 1us", 1_000_001_000)],
)
def test_parse_time__units_and_sums(text: str, ns: int) -> None:
    assert parse_time(text) == ns


def test_parse_time__round_trips_where_they_are_known() -> None:
    assert parse_time("200us + 10rtt", rtt_ns=7000) == 270_000
    with pytest.raises(ValueError, match="'10rtt' is no time; units are ns, us, ms, s"):
        parse_time("10rtt")


@pytest.mark.parametrize("text", ["", "5", "-5us", "5 kg", "us", "1us +", "1e3us"])
def test_parse_time__refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no time"):
        parse_time(text)


def test_parse_rate_and_size__units() -> None:
    assert parse_rate("100Gbit/s") == 100 * 10**9
    assert parse_size("16MiB") == 16 << 20
    assert parse_size("1.5 kB") == 1500


def test_parse_share__at_most_all() -> None:
    assert parse_share("0.1%") == 1000
    assert parse_share("100%") == 10**6
    with pytest.raises(ValueError, match="more than all"):
        parse_share("101%")
