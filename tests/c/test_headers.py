# SPDX-License-Identifier: Apache-2.0
"""The sources compile with clang, and the socket driver with older kernel headers."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import cbuild
import pytest


def test_io__compiles_where_headers_hide_the_flow_label_options(tmp_path: Path) -> None:
    """As in Linux 6.1.4, whose headers come with the cross compilers of Debian 12."""
    shown = Path("/usr/include/linux/in6.h").read_text()
    hidden = re.sub(r"^#define\s+IPV6_FLOWINFO(_SEND)?\s.*$", "", shown, flags=re.MULTILINE)
    (tmp_path / "linux").mkdir()
    (tmp_path / "linux" / "in6.h").write_text(hidden)
    for source in sorted((cbuild.CSRC / "io").glob("*.c")):
        check = ["gcc", *cbuild.COMMON, "-fsyntax-only", f"-I{tmp_path}", f"-I{cbuild.CSRC}"]
        done = subprocess.run([*check, source], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_sources__compile_with_clang() -> None:
    if shutil.which("clang") is None:
        pytest.skip("clang is not installed: apt-get install clang")
    check = ["clang", *cbuild.COMMON, "-fsyntax-only", f"-I{cbuild.CSRC}"]
    needed = {"ofi": "rdma/providers/fi_prov.h", "verbs": "infiniband/verbs.h"}
    sources = [
        source
        for source in sorted(cbuild.CSRC.glob("*/**/*.c"))
        if cbuild.has_header(needed.get(source.parent.name, "stdint.h"))
    ]
    assert cbuild.CSRC / "core" / "send.c" in sources
    done = subprocess.run([*check, *sources], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
