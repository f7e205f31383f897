# SPDX-License-Identifier: Apache-2.0
"""A Context's state as Prometheus metrics, with the names, units and labels of its conventions.

The labels are `peer`, `plane`, `path`, `state` and `reason`. There is no label for QPs (see
mrc/observe/snapshot.py). Paths beyond MAX_PATHS are left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from msgspec import Struct
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector

from mrc.engine import native
from mrc.enums import EvState
from mrc.events import EvInfo, PlaneInfo, known
from mrc.observe.snapshot import MEANINGS, Ledger, OpenQp, Totals

if TYPE_CHECKING:
    from mrc.aio.context import Context

MAX_PATHS = 1024


class Scrape(Struct, frozen=True, eq=False):
    """The data of all metrics at one moment."""

    host: str
    counters: Mapping[str, int]
    drops: Mapping[str, int]
    totals: Totals
    live: Sequence[OpenQp]

    def collect(self) -> Iterator[Metric]:
        """The metrics, for a registry."""
        info = GaugeMetricFamily("mrc_info", "Version of mrc.", labels=("host", "version"))
        info.add_metric((self.host, _version()), 1)
        yield info
        meanings = native.names_of("counter", "meaning")
        for meaning, (name, count) in zip(meanings, self.counters.items(), strict=False):
            metric, text = f"mrc_{COUNTERS[name]}", f"{meaning[0].upper()}{meaning[1:]}."
            yield CounterMetricFamily(metric, text, value=count)
        drops = CounterMetricFamily(
            "mrc_dropped_packets", "Received packets that were dropped.", labels=("reason",)
        )
        for reason, count in self.drops.items():
            drops.add_metric((reason.lower(),), count)
        yield drops
        yield from _totals(self.totals)
        yield from _peers(self.live)
        yield from _planes(self.live)
        yield from _evs(self.live)


async def read(ctx: Context, ledger: Ledger) -> Scrape:
    """Reads the data of all metrics; raises StateError if the Context is closed."""
    totals, live = await ledger.read()
    return Scrape(ctx.name, await ctx.counters(), await ctx.drops(), totals, live)


def exposition(reading: Scrape, accept: str) -> tuple[bytes, str]:
    """The page for a scrape, in a format that its Accept header allows, and the content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(reading)
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _version() -> str:
    try:
        return version("mrc-transport")
    except PackageNotFoundError:
        return "unknown"


def _totals(totals: Totals) -> Iterator[Metric]:
    for name, meaning in MEANINGS.items():
        labels = ("peer", "plane") if name.startswith("plane_") else ("peer",)
        family = CounterMetricFamily(f"mrc_{name}", meaning, labels=labels)
        for (key, *values), count in totals.items():
            if key == name:
                family.add_metric(values, count)
        yield family


def _gauge(
    name: str, meaning: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]
) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=labels)
    for names, value in values.items():
        family.add_metric(names, value)
    return family


def _peers(live: Sequence[OpenQp]) -> Iterator[Metric]:
    qps: Counter[tuple[str, ...]] = Counter(
        (each.peer, each.info.state.name.lower()) for each in live
    )
    yield _gauge("mrc_qps", "QPs that are not closed.", ("peer", "state"), qps)
    sums: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for each in live:
        sums["outstanding"][(each.peer,)] += each.info.outstanding
        sums["window"][(each.peer,)] += each.info.cwnd_bytes
    yield _gauge(
        "mrc_peer_outstanding_work_requests", "Work requests posted and not yet completed.",
        ("peer",), sums["outstanding"],
    )  # fmt: skip
    yield _gauge(
        "mrc_peer_congestion_window_bytes", "Sum of the congestion windows of all QPs.",
        ("peer",), sums["window"],
    )  # fmt: skip


def _planes(live: Sequence[OpenQp]) -> Iterator[Metric]:
    def over_qps(
        combine: Callable[[Iterable[float]], float], value: Callable[[PlaneInfo], float]
    ) -> dict[tuple[str, ...], float]:
        parts: dict[tuple[str, ...], list[float]] = {}
        for each in live:
            for plane in each.info.planes:
                parts.setdefault((each.peer, str(plane.plane)), []).append(value(plane))
        return {key: combine(values) for key, values in parts.items()}

    labels = ("peer", "plane")
    suspended = over_qps(sum, lambda plane: plane.suspended)
    yield _gauge("mrc_plane_suspended_qps", "QPs that suspended the plane.", labels, suspended)
    shares = over_qps(min, lambda plane: plane.share_percent / 100)
    yield _gauge(
        "mrc_plane_share_ratio",
        "Bytes that the plane carries, relative to the mean of the other planes.",
        labels, shares,
    )  # fmt: skip
    inflight = over_qps(sum, lambda plane: plane.inflight_bytes)
    yield _gauge("mrc_plane_inflight_bytes", "Payload bytes in flight.", labels, inflight)
    rtts = over_qps(max, lambda plane: plane.rtt_ns / 1e9 if plane.rtt_ns is not None else -1.0)
    heard = {key: rtt for key, rtt in rtts.items() if rtt >= 0}
    yield _gauge("mrc_plane_rtt_seconds", "Smoothed round trip, of the slowest QP.", labels, heard)


def _evs(live: Sequence[OpenQp]) -> Iterator[Metric]:
    states: dict[tuple[str, ...], float] = {}
    paths: dict[tuple[str, ...], list[EvInfo]] = {}
    for each in live:
        for ev in each.evs:
            for state in EvState:  # a state without EVs is exported as 0, so its series persists
                key = (each.peer, str(ev.plane), state.name.lower())
                states[key] = states.get(key, 0) + (ev.state is state)
            paths.setdefault((each.peer, str(ev.plane), ev.path), []).append(ev)
    yield _gauge("mrc_evs", "EVs of all QPs.", ("peer", "plane", "state"), states)
    rtts = {
        key: min(heard) / 1e9
        for key, evs in list(paths.items())[:MAX_PATHS]
        if (heard := list(known(ev.rtt_ns for ev in evs)))
    }
    yield _gauge(
        "mrc_path_rtt_seconds", "Smoothed round trip, of the fastest QP.",
        ("peer", "plane", "path"), rtts,
    )  # fmt: skip


# ---- Names ---------------------------------------------------------------------------------------


# The keys are those of csrc/core/counters.def and csrc/io/io_counters.def, which say what each one
# counts. Metrics get the prefix `mrc_` and the suffix `_total`.
COUNTERS: Mapping[str, str] = {
    "RX_PACKETS": "rx_packets", "RX_DROPPED": "rx_dropped_packets", "RX_DATA": "rx_data_packets",
    "RX_BYTES": "rx_bytes", "RX_RECORDED": "rx_recorded_bytes",
    "RX_DUPLICATES": "rx_duplicate_packets", "RX_CE": "rx_ce_packets", "RX_SACKS": "rx_sacks",
    "RX_NACKS": "rx_nacks", "RX_ACKS": "rx_acks", "TX_DATA": "tx_data_packets",
    "TX_BYTES": "tx_bytes", "TX_RETRANSMITTED": "tx_retransmitted_packets",
    "TX_REDUNDANT": "tx_redundant_packets", "TX_SACKS": "tx_sacks",
    "TX_NACKS": "tx_nacks", "TX_ACKS": "tx_acks", "TX_PROBES": "tx_probes",
    "TX_EV_PROBES": "tx_ev_probes", "TX_EV_ANSWERS": "tx_ev_answers",
    "TX_PORT_STATUS": "tx_port_status_messages", "RX_PORT_STATUS": "rx_port_status_messages",
    "TX_REFUSED": "tx_refused_packets", "LOST_BY_ORDER": "lost_by_order_packets",
    "LOST_BY_TIME": "lost_by_time_packets", "LOST_BY_NACK": "lost_by_nack_packets",
    "LOST_BY_SILENCE": "lost_by_silence_packets", "LOST_BY_TIMEOUT": "lost_by_timeout_packets",
    "REINJECTED": "reinjected_packets", "LOST_TO_CONGESTION": "lost_to_congestion_packets",
    "SPURIOUS": "spurious_losses", "TIMEOUTS": "timeouts", "PLANES_SUSPENDED": "plane_suspensions",
    "PLANES_RESUMED": "plane_resumptions", "EVS_BAD": "ev_failures",
    "EVS_TRUSTED": "ev_recoveries", "EVENTS_DROPPED": "dropped_events",
    "ANSWERS_DROPPED": "dropped_endpoint_requests", "WIMM_HELD": "held_immediates",
    "RX_SYSCALLS": "rx_syscalls", "RX_DATAGRAMS": "rx_datagrams", "GRO_SEGMENTS": "rx_gro_packets",
    "RX_OVERFLOW": "rx_overflow_packets", "TX_SYSCALLS": "tx_syscalls", "TX_BURSTS": "tx_bursts",
    "TX_BURSTS_REFUSED": "tx_refused_bursts", "TX_BURST_ERRORS": "tx_failed_bursts",
    "TX_ERROR_REPORTS": "tx_error_reports", "MEMORY_FAULTS": "memory_faults",
}  # fmt: skip
