# SPDX-License-Identifier: Apache-2.0
"""The metric name of each counter of the engine and of its driver.

The keys are those of csrc/core/counters.def and csrc/io/io_counters.def, which say what each
one counts. Metrics get the prefix `mrc_` and the suffix `_total`.
"""

from __future__ import annotations

from collections.abc import Mapping

COUNTERS: Mapping[str, str] = {
    "RX_PACKETS": "rx_packets", "RX_DROPPED": "rx_dropped_packets", "RX_DATA": "rx_data_packets",
    "RX_BYTES": "rx_bytes", "RX_RECORDED": "rx_recorded_bytes",
    "RX_DUPLICATES": "rx_duplicate_packets", "RX_CE": "rx_ce_packets", "RX_SACKS": "rx_sacks",
    "RX_NACKS": "rx_nacks", "RX_ACKS": "rx_acks", "TX_DATA": "tx_data_packets",
    "TX_BYTES": "tx_bytes", "TX_RETRANSMITTED": "tx_retransmitted_packets", "TX_SACKS": "tx_sacks",
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
