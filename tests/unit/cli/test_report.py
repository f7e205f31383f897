# SPDX-License-Identifier: Apache-2.0
"""The settings that results name."""

from __future__ import annotations

from unittest.mock import Mock

from mrc import ContextConfig, Queues, Retries, Spraying
from mrc.cli.report import settings
from mrc.results.plain import plain


def test_settings__by_their_names_of_today() -> None:
    """A former name would warn, which fails here, and be gone in the next version."""
    config = ContextConfig(
        queues=Queues(sq_depth=77), retries=Retries(ack_timeout_exponent=9),
        spraying=Spraying(burst_packets=3),
    )  # fmt: skip
    qp = Mock(peer_host="h1", path_mtu=1024, mpr=2048)
    found = plain(settings(Mock(config=config, udp_port=4791), qp, tcp_port=7))
    assert [found[key] for key in ("sq_depth", "timeout", "spray", "mpr")] == [77, 9, 3, 2048]
