# SPDX-License-Identifier: Apache-2.0
"""What test beds need of this machine, as `mrc doctor` finds it."""

from __future__ import annotations

import pytest

from mrc.doctor import State
from mrc.errors import StateError
from mrc.testbed import findings, rootless


def test_examine__what_is_not_good_comes_with_consequence_and_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Covers everything that may fail here: each verdict is inverted once."""

    def refused() -> dict[str, str | None]:
        raise StateError("unshare: not here")

    monkeypatch.setattr(rootless, "is_allowed", lambda: True)
    monkeypatch.setattr(findings, "kernel", refused)
    found = {each.name: each for each in findings.examine()}
    assert found["network namespaces"].found == "unshare: not here"
    everything: dict[str, str | None] = dict.fromkeys(findings._NEEDS, "refused")
    monkeypatch.setattr(findings, "kernel", lambda: everything)
    found = {each.name: each for each in findings.examine()}
    for name in everything:
        assert found[name].state is not State.OK
        assert found[name].consequence and found[name].remedy
