# SPDX-License-Identifier: Apache-2.0
"""A scenario becomes one of a test bed: its links, its rates, hosts that are real."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from unit.workload.scenes import EMULATED, PAIR, SHAPE, scenario

from mrc.enums import CcKind
from mrc.errors import ArgumentError, BadFileError, ConfigError
from mrc.fabric.faults import LinkChange, TimedFault
from mrc.workload import fit

FAULTS = [
    {"target": "plane:1", "kind": "silent", "at": "1ms", "until": "3ms"},
    {"target": "plane:2", "kind": "rate", "rate": "1Gbit/s", "at": "2ms"},
]
LONG = """
title = "a hundredth of the rate"
[topology]
hosts = 8
planes = 4
t1 = 2
host_rate = "10Gbit/s"
[[traffic]]
kind = "permutation"
write = "1MiB"
[[traffic]]
kind = "checkpoint"
to = [3]
write = "1MiB"
start = "1ms"
steps = 2
compute = "2ms"
[[checks]]
measure = "goodput"
from = "1ms"
to = "2ms"
at_least = "90%"
[run]
until = "5ms"
[[variants]]
name = "one"
set = { "traffic.0.write" = "2MiB" }
"""


def test_load__the_bed_of_the_user(tmp_path: Path) -> None:
    """Hosts, planes and rates are those of the test bed; times grow as the links are slower."""
    file = tmp_path / "long.toml"
    file.write_text(LONG)
    (part,) = fit.load(str(file), {}, SHAPE, 0.5).parts
    assert (part.topology.hosts, part.topology.planes, part.topology.t0) == (4, 2, 2)
    assert part.topology.host_rate_bps == 10**8
    assert [each.bytes for each in part.traffic] == [1 << 20, 1 << 19]
    assert (part.traffic[1].start_ns, part.traffic[1].compute_ns) == (50_000_000, 100_000_000)
    assert (part.checks[0].from_ns, part.checks[0].to_ns) == (50_000_000, 100_000_000)
    assert part.until_ns == 250_000_000


def test_load__what_the_bed_lacks(tmp_path: Path) -> None:
    file = tmp_path / "long.toml"
    file.write_text(LONG.replace("to = [3]", "to = [4]"))
    with pytest.raises(BadFileError, match=r"traffic\[1\].to"):
        fit.load(str(file), {}, SHAPE)
    file.write_text(LONG)
    without = replace(SHAPE, host_rate_bps=None)
    with pytest.raises(ArgumentError, match="requires links with a rate"):
        fit.load(str(file), {}, without)
    with pytest.raises(ConfigError, match=r"transport.kind ecmp is simulated"):
        fit.load(str(file), {"transport.kind": "ecmp"}, SHAPE)


def test_fitted__faults_at_the_same_byte() -> None:
    silent, rate = scenario(faults=FAULTS).faults
    assert (silent.at_ns, silent.until_ns) == (100_000_000, 300_000_000)
    assert (rate.at_ns, rate.a) == (200_000_000, 10_000_000)


@pytest.mark.parametrize("shape", [SHAPE, EMULATED])
def test_fitted__hosts_are_real(shape: object) -> None:
    """They are later than simulated ones, and acknowledge more rarely."""
    assert shape in (SHAPE, EMULATED)
    part = scenario(SHAPE if shape is SHAPE else EMULATED, transport={"path_mtu": 16384})
    transport = part.transport
    assert transport.path_mtu == 8844
    assert transport.noise_ns == transport.sack_delay_ns == 500_000
    assert transport.sack_threshold_bytes == 256 << 10
    is_kernel = shape is SHAPE
    assert transport.cc is (CcKind.DELAY if is_kernel else CcKind.NSCC)
    assert part.topology.trimming is not is_kernel
    assert (part.topology.ecn_high_bytes == 0) is is_kernel
    assert part.topology.host_delay_ns == (50_000 if is_kernel else 200_000)


def test_fitted__links_that_differ() -> None:
    shape = replace(SHAPE, links=(LinkChange("plane:2", rate_bps=10**7, loss=0.01),))
    assert scenario(shape).links == (
        TimedFault("plane:2", "rate", "all", 0, None, 10**7, 0),
        TimedFault("plane:2", "loss", "all", 0, None, 10_000, 0),
    )


def test_fitted__tcp_keeps_the_size_of_its_segments() -> None:
    tcp = {"kind": "tcp", "pairs": [[1, 2]], "mss": 8000}
    assert [each.bytes for each in scenario(traffic=[PAIR, tcp]).traffic] == [65536, 8000]
