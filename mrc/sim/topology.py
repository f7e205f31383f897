# SPDX-License-Identifier: Apache-2.0
"""Reads the table `[topology]` of a file: the same for the simulator and for test beds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mrc import units
from mrc.sim import native
from mrc.sim.scenario import Topology
from mrc.sim.table import Table

MIN_MTU, MAX_MTU = 1400, 65535


def read_topology(table: Table) -> Topology:
    """Raises ConfigError."""
    hosts = table.integer("hosts", 2, native.MAX_HOSTS)
    topology = Topology(
        hosts=hosts,
        planes=table.integer("planes", 1, native.MAX_PLANES),
        t0=table.integer("t0", 1, native.MAX_T0, hosts),
        t1=table.integer("t1", 1, native.MAX_T1),
        routing=table.choice("routing", native.ROUTING, "source-routes"),
        host_rate_bps=table.parsed("host_rate", units.parse_rate, "100Gbit/s"),
        fabric_rate_bps=table.parsed("fabric_rate", units.parse_rate, "100Gbit/s"),
        host_delay_ns=table.parsed("host_delay", units.parse_time, "500ns"),
        fabric_delay_ns=table.parsed("fabric_delay", units.parse_time, "500ns"),
        jitter_ns=table.parsed("jitter", units.parse_time, "0ns"),
        buffer_bytes=table.parsed("buffer", units.parse_size, "1MiB"),
        ecn_low_bytes=table.parsed("ecn_low", units.parse_size, "100KiB"),
        ecn_high_bytes=table.parsed("ecn_high", units.parse_size, "400KiB"),
        ecn_last_hop=table.boolean("ecn_last_hop", False),
        trimming=table.boolean("trimming", True),
        wake_ns=table.parsed("wake", units.parse_time, "1us"),
        wake_noise_ns=table.parsed("wake_noise", units.parse_time, "0ns"),
        mtu=table.integer("mtu", MIN_MTU, MAX_MTU, 9000),
        sndbuf_bytes=table.parsed("send_buffer", units.parse_size, "64KiB"),
    )
    if table.has("oversubscription"):
        topology = _oversubscribed(table, topology)
    table.close()
    if topology.hosts % topology.t0:
        raise table.error("hosts", f"{topology.hosts} is no multiple of t0 ({topology.t0})")
    if not topology.host_rate_bps or not topology.fabric_rate_bps:
        raise table.error("host_rate", "a link without a rate carries nothing")
    if 0 < topology.ecn_high_bytes <= topology.ecn_low_bytes:
        raise table.error("ecn_high", "is not above ecn_low")
    return topology


def read_link(
    table: Table, parse_target: Callable[[str], object]
) -> tuple[str, int | None, int | None]:
    """A table of `[[links]]`: target, rate in bits a second, delay in ns; None: that of its tier.

    Raises ConfigError.
    """
    target = table.text("target")
    table.parsed("target", parse_target)
    rate_bps = table.parsed("rate", units.parse_rate) if table.has("rate") else None
    delay_ns = table.parsed("delay", units.parse_time) if table.has("delay") else None
    table.close()
    if rate_bps is None and delay_ns is None:
        raise table.error("target", "has neither rate nor delay")
    if rate_bps == 0:
        raise table.error("rate", "a link without a rate carries nothing")
    return target, rate_bps, delay_ns


def _oversubscribed(table: Table, topology: Topology) -> Topology:
    """With the rate of uplinks that makes those of a T0 together so much slower than its hosts."""
    if table.has("fabric_rate"):
        raise table.error("oversubscription", "says what fabric_rate is: leave one of them out")
    ratio = table.number("oversubscription", 0.01, 1000.0)
    below = topology.host_rate_bps * (topology.hosts // topology.t0)
    return replace(topology, fabric_rate_bps=round(below / topology.t1 / ratio))
