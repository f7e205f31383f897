# SPDX-License-Identifier: Apache-2.0
"""Adds the compiled modules to the package that pyproject.toml describes, and in a source archive
of tools/wheel the files in wheel-data/: manual pages, shell completion and a systemd unit.
"""

from pathlib import Path

from setuptools import setup

DATA = Path("wheel-data")

setup(
    cffi_modules=[
        "mrc/_ffi_build.py:builder",
        "mrc/_ffi_build.py:sim_builder",
        "mrc/_ffi_build.py:emu_builder",
    ],
    data_files=[
        (str(path.parent.relative_to(DATA)), [str(path)])
        for path in sorted(DATA.rglob("*"))
        if path.is_file()
    ],
)
