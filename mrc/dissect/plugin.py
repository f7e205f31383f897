# SPDX-License-Identifier: Apache-2.0
"""Installs the dissector for Wireshark and tshark."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from mrc.errors import MrcError

LUA = Path(__file__).parent / "mrc.lua"
_FOLDER = Path(".local", "lib", "wireshark", "plugins")  # where tshark is not there to ask


class PluginError(MrcError):
    """The dissector cannot be installed or removed."""


def folder() -> Path:
    """This user's folder of Lua plugins."""
    if shutil.which("tshark") is not None:
        asked = ["tshark", "-G", "folders"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=30)
        for line in done.stdout.splitlines():
            name, _, path = line.partition(":")
            if name == "Personal Lua Plugins" and path.strip():
                return Path(path.strip())
    return Path.home() / _FOLDER


def install() -> Path:
    """Copies the dissector to the plugin folder; returns its place."""
    place = folder() / LUA.name
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(LUA, place)
    except OSError as error:
        raise PluginError(f"{place}: {(error.strerror or str(error)).lower()}") from error
    return place


def uninstall() -> Path:
    """Removes it; returns its former place."""
    place = folder() / LUA.name
    try:
        os.unlink(place)
    except OSError as error:
        raise PluginError(f"{place}: {(error.strerror or str(error)).lower()}") from error
    return place
