# SPDX-License-Identifier: Apache-2.0
"""Adds the compiled modules to the package that pyproject.toml describes."""

from setuptools import setup

setup(
    cffi_modules=[
        "mrc/_ffi_build.py:builder",
        "mrc/_ffi_build.py:sim_builder",
        "mrc/_ffi_build.py:emu_builder",
    ]
)
