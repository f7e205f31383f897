# SPDX-License-Identifier: Apache-2.0
"""The settings that results name, and what a transfer waited for."""

from __future__ import annotations

from unittest.mock import Mock

from msgspec.structs import replace

from mrc import ContextConfig, Queues, Retries, Spraying
from mrc.cli.figures import settings
from mrc.results import plain
from mrc.transfer.cli.report import batch_lines, waits_sentence
from mrc.transfer.results import StoredBatch, Waits


def test_batch_lines__counts_what_a_pack_has() -> None:
    pack = StoredBatch((), 1, 2, 2048, packed=True)
    assert batch_lines(pack, 1.0) == ["1 file, 2 folders  2 KiB  1 s  16.4 kbit/s"]
    (line,) = batch_lines(replace(pack, count=20, folders=1, links=1), 1.0)
    assert line.startswith("20 files, 1 folder, 1 link  ")


def test_settings__by_their_names_of_today() -> None:
    """A former name would warn, which fails here, and be gone in the next version."""
    config = ContextConfig(
        queues=Queues(sq_depth=77), retries=Retries(ack_timeout_exponent=9),
        spraying=Spraying(burst_packets=3),
    )  # fmt: skip
    qp = Mock(peer_host="h1", path_mtu=1024, mpr=2048)
    found = plain(settings(Mock(config=config, udp_port=4791), qp, tcp_port=7))
    assert [found[key] for key in ("sq_depth", "timeout", "spray", "mpr")] == [77, 9, 3, 2048]


def test_waits_sentence__without_what_took_no_time() -> None:
    all_parts, two = Waits(0.001, 2.5, 0.25), Waits(0.0, 2.5, 0.25)
    sentence = "waited 1 ms for reading, 2.5 s for the network, 250 ms for storing"
    assert waits_sentence(all_parts) == sentence
    assert waits_sentence(two) == "waited 2.5 s for the network, 250 ms for storing"
    assert waits_sentence(Waits(0.0, 0.0, 0.0)) == ""
