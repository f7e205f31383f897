# SPDX-License-Identifier: Apache-2.0
"""Who may make namespaces."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mrc.linux import netns

ROOT = [] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user"]


@pytest.mark.parametrize(
    ("dropped", "lacks"),
    [
        ("-sys_admin", "CAP_SYS_ADMIN"),
        ("-net_admin,-sys_admin", "CAP_NET_ADMIN and CAP_SYS_ADMIN"),
        ("-mknod", netns.lacks() if ROOT == [] else ""),
    ],
)
def test_lacks__root_without_capabilities(dropped: str, lacks: str) -> None:
    """As in most containers, where uid 0 may not make namespaces."""
    if ROOT and subprocess.run([*ROOT, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs root, or user namespaces")
    code = "from mrc.linux import netns; print(netns.lacks())"
    drop = ["setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}"]
    done = subprocess.run(
        [*ROOT, *drop, sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{lacks}\n", done.stderr


def test_lacks__an_ordinary_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert netns.lacks() == "root"
