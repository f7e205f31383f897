# SPDX-License-Identifier: Apache-2.0
"""Certificates of peers that are none of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrc.trust.identity import load, public_of


def test_public_of__a_certificate_that_is_damaged_anywhere(tmp_path: Path) -> None:
    """Whatever a peer shows: a key, or a ValueError. X.509 version 6 is one of these."""
    identity = load(tmp_path / "key.pem")
    good = identity.certificate
    assert public_of(good) == identity.public
    version = good.index(bytes.fromhex("a003020102")) + 4
    with pytest.raises(ValueError, match="version"):
        public_of(good[:version] + b"\5" + good[version + 1 :])
    for at in range(len(good)):
        for value in (0x00, 0x05, 0x80, 0xFF):
            try:
                assert len(public_of(good[:at] + bytes([value]) + good[at + 1 :])) == 32
            except ValueError:
                pass
