# SPDX-License-Identifier: Apache-2.0
"""The metric name and the meaning of each counter of the engine and of its driver.

The keys are those of csrc/core/base/counters.def and csrc/io/io_counters.def. Metrics get the
prefix `mrc_` and the suffix `_total`.
"""

from __future__ import annotations

from collections.abc import Mapping

COUNTERS: Mapping[str, tuple[str, str]] = {
    "RX_PACKETS": ("rx_packets", "Packets handed to the engine."),
    "RX_DROPPED": ("rx_dropped_packets", "Packets ignored, for any reason."),
    "RX_DATA": ("rx_data_packets", "Data packets placed."),
    "RX_BYTES": ("rx_bytes", "Payload bytes placed."),
    "RX_RECORDED": ("rx_recorded_bytes", "Payload bytes placed for QPs that were being recorded."),
    "RX_DUPLICATES": ("rx_duplicate_packets", "Data packets received before."),
    "RX_CE": ("rx_ce_packets", "Packets that carried the ECN mark CE."),
    "RX_SACKS": ("rx_sacks", "SACKs accepted."),
    "RX_NACKS": ("rx_nacks", "NACKs accepted."),
    "RX_ACKS": ("rx_acks", "Transport ACKs and NAKs accepted."),
    "TX_DATA": ("tx_data_packets", "Data packets sent, retransmissions included."),
    "TX_BYTES": ("tx_bytes", "Payload bytes sent, retransmissions included."),
    "TX_RETRANSMITTED": ("tx_retransmitted_packets", "Data packets retransmitted."),
    "TX_SACKS": ("tx_sacks", "SACKs sent."),
    "TX_NACKS": ("tx_nacks", "NACKs sent."),
    "TX_ACKS": ("tx_acks", "Transport ACKs and NAKs sent."),
    "TX_PROBES": ("tx_probes", "Reliability probes sent."),
    "TX_EV_PROBES": ("tx_ev_probes", "EV probes sent."),
    "TX_EV_ANSWERS": ("tx_ev_answers", "Endpoint responses sent."),
    "TX_PORT_STATUS": ("tx_port_status_messages", "Port status messages sent."),
    "RX_PORT_STATUS": ("rx_port_status_messages", "Port status messages that changed something."),
    "TX_REFUSED": (
        "tx_refused_packets",
        "Packets that the kernel refused, kept for the next send.",
    ),
    "LOST_BY_ORDER": (
        "lost_by_order_packets",
        "Packets declared lost: a later packet on the same EV arrived.",
    ),
    "LOST_BY_TIME": (
        "lost_by_time_packets",
        "Packets declared lost: a much later packet on the same plane arrived.",
    ),
    "LOST_BY_NACK": ("lost_by_nack_packets", "Packets declared lost: the receiver sent a NACK."),
    "LOST_BY_SILENCE": (
        "lost_by_silence_packets",
        "Packets declared lost: their plane was silent or suspended.",
    ),
    "LOST_BY_TIMEOUT": (
        "lost_by_timeout_packets",
        "Packets declared lost: the local timeout expired.",
    ),
    "REINJECTED": (
        "reinjected_packets",
        "Packets sent again on another plane because all others waited for them.",
    ),
    "LOST_TO_CONGESTION": (
        "lost_to_congestion_packets",
        "Losses attributed to overflow, not to a failed path.",
    ),
    "SPURIOUS": ("spurious_losses", "Packets declared lost whose original arrived."),
    "TIMEOUTS": ("timeouts", "Expiries of the local timeout."),
    "PLANES_SUSPENDED": (
        "plane_suspensions",
        "Planes suspended: silent, or a port at one end is down.",
    ),
    "PLANES_RESUMED": ("plane_resumptions", "Planes trusted again."),
    "EVS_BAD": ("ev_failures", "EVs that went to ASSUMED_BAD."),
    "EVS_TRUSTED": ("ev_recoveries", "EVs trusted again after answered probes."),
    "EVENTS_DROPPED": ("dropped_events", "Events dropped because the event ring was full."),
    "ANSWERS_DROPPED": (
        "dropped_endpoint_requests",
        "Endpoint requests dropped because too many waited for an answer.",
    ),
    "WIMM_HELD": (
        "held_immediates",
        "Times the cumulative PSN waited for room in the completion queue.",
    ),
    "RX_SYSCALLS": ("rx_syscalls", "Calls of recvmmsg that returned messages."),
    "RX_DATAGRAMS": ("rx_datagrams", "Messages received; one may be many packets joined by GRO."),
    "GRO_SEGMENTS": ("rx_gro_packets", "Packets that GRO joined with others in one message."),
    "RX_OVERFLOW": (
        "rx_overflow_packets",
        "Packets the kernel dropped because a receive buffer was full.",
    ),
    "TX_SYSCALLS": ("tx_syscalls", "Calls of sendmmsg."),
    "TX_BURSTS": ("tx_bursts", "Bursts taken by the kernel."),
    "TX_BURSTS_REFUSED": (
        "tx_refused_bursts",
        "Bursts refused by a full socket or local queue: not sent, not lost.",
    ),
    "TX_BURST_ERRORS": ("tx_failed_bursts", "Bursts refused for any other reason."),
    "TX_ERROR_REPORTS": (
        "tx_error_reports",
        "Reports, mostly ICMP, in the error queues of transmit sockets.",
    ),
    "MEMORY_FAULTS": ("memory_faults", "Registered memory regions that lost their backing."),
}
