# SPDX-License-Identifier: Apache-2.0
"""The socket driver compiles with the kernel headers of older distributions."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import cbuild


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
