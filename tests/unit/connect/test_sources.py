# SPDX-License-Identifier: Apache-2.0
"""Sources, their networks, and those that have proved themselves."""

from __future__ import annotations

import pytest

from mrc.connect import admission
from mrc.connect.admission import KnownSources, network_of, source_of


@pytest.mark.parametrize(
    ("address", "source", "network"),
    [
        ("10.1.2.3", "10.1.2.3", "10.1.0.0/16"),
        ("::ffff:10.1.2.3", "10.1.2.3", "10.1.0.0/16"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::", "2001:db8:1::/48"),
        ("fe80::1%eth0", "fe80::", "fe80::/48"),
    ],
)
def test_source_of__and_its_network(address: str, source: str, network: str) -> None:
    assert (source_of(address), network_of(address)) == (source, network)


def test_known__the_last_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_MOST_KNOWN", 2)
    known = KnownSources()
    for source in ("a", "b", "a", "c"):
        known.add(source)
    assert [source in known for source in "abc"] == [True, False, True]
