# SPDX-License-Identifier: Apache-2.0
"""Installs the dissector for Wireshark and tshark."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from mrc.errors import MrcError
from mrc.linux.files import write_whole

LUA = Path(__file__).parent / "mrc.lua"
_FOLDER = Path(".local", "lib", "wireshark", "plugins")  # where tshark is not there to ask


class PluginError(MrcError):
    """The dissector cannot be installed or removed."""


def folder() -> Path:
    """This user's folder of Lua plugins."""
    for line in _folders().splitlines():
        name, _, path = line.partition(":")
        if name == "Personal Lua Plugins" and path.strip():
            return Path(path.strip())
    return Path.home() / _FOLDER


def _folders() -> str:
    """What tshark says of its folders; nothing if it is not installed or does not run."""
    command = ["tshark", "-G", "folders"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return os.fsdecode(done.stdout)


def install() -> Path:
    """Copies the dissector to the plugin folder; returns its place."""
    place = folder() / LUA.name
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, LUA.read_bytes())
    except OSError as error:
        raise PluginError(f"{place}: {(error.strerror or str(error)).lower()}") from error
    return place


def uninstall() -> Path:
    """Removes it; returns its former place."""
    place = folder() / LUA.name
    try:
        place.unlink()
    except FileNotFoundError:
        raise PluginError(f"{place}: is not installed") from None
    except OSError as error:
        raise PluginError(f"{place}: {(error.strerror or str(error)).lower()}") from error
    return place
