# SPDX-License-Identifier: Apache-2.0
"""tools/requirements.lock can be installed by the oldest pip, which is Debian 12's."""

from __future__ import annotations

import re
from importlib.metadata import distributions

import cbuild
from packaging.requirements import Requirement

LOCK = cbuild.ROOT / "tools" / "requirements.lock"


def test_lock__names_the_extras_that_packages_require_of_each_other() -> None:
    pinned = re.findall(r"^([\w.-]+)(?:\[([\w,-]+)\])?==", LOCK.read_text(), re.MULTILINE)
    extras = {name.lower(): set(filter(None, some.split(","))) for name, some in pinned}
    assert len(extras) > 20
    missing = [
        f"{found.name} requires {wanted}"
        for found in distributions()
        if found.name.lower() in extras
        for wanted in map(Requirement, found.requires or [])
        if wanted.name.lower() in extras and not wanted.extras <= extras[wanted.name.lower()]
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""})
    ]
    assert not missing
