# SPDX-License-Identifier: Apache-2.0
"""What a host says when it refuses a peer, or ends a connection."""

from __future__ import annotations

from typing import Any

import pytest

from mrc.connect.oob import kind_in, refusal_fields
from mrc.errors import Kind


@pytest.mark.parametrize("kind", Kind)
def test_fields__also_for_a_former_mrc(kind: Kind) -> None:
    found = refusal_fields("in words", kind)
    assert kind_in(found) is kind
    assert found["busy"] is (kind is Kind.BUSY)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ({"kind": "no answer", "busy": False}, Kind.NO_ANSWER),
        ({"kind": ""}, Kind.OTHER),
        ({"reason": "is UDP blocked?"}, Kind.OTHER),
        ({"reason": "of mrc 0.3", "busy": True}, Kind.BUSY),
        ({"reason": "of mrc 0.3", "busy": False}, Kind.OTHER),
        ({"kind": "of a later version"}, Kind.OTHER),
        ({"kind": ["busy"]}, Kind.OTHER),
    ],
)
def test_kind_in(message: dict[str, Any], kind: Kind) -> None:
    assert kind_in(message) is kind
