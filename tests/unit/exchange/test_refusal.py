# SPDX-License-Identifier: Apache-2.0
"""What a host says when it refuses a peer, or ends a connection."""

from __future__ import annotations

from typing import Any

import pytest

from mrc.errors import Kind
from mrc.exchange.refusal import fields, kind_in


@pytest.mark.parametrize("kind", Kind)
def test_fields__also_for_a_former_mrc(kind: Kind) -> None:
    found = fields("in words", kind)
    assert kind_in(found) is kind
    assert found["busy"] is (kind is Kind.BUSY)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ({"kind": "no answer", "busy": False}, Kind.NO_ANSWER),
        ({"kind": ""}, Kind.OTHER),
        ({"reason": "is UDP blocked?"}, Kind.OTHER),
        ({"busy": True}, Kind.BUSY),  # of a former version, as is the next
        ({"paths_lost": True}, Kind.PATHS_LOST),
        ({"kind": "of a later version"}, Kind.OTHER),
        ({"kind": ["busy"]}, Kind.OTHER),
    ],
)
def test_kind_in(message: dict[str, Any], kind: Kind) -> None:
    assert kind_in(message) is kind
