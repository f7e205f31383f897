# SPDX-License-Identifier: Apache-2.0
"""What a module says of each action of `mrc testbed` that it has, in its `ACTIONS`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum, auto
from typing import Any

from msgspec import Struct


class Needs(Enum):
    """The test bed that an action needs."""

    NONE = auto()
    """it may be of another user, or not exist"""
    NAME = auto()
    """it may be down"""
    UP = auto()
    NEW = auto()
    """the action makes it"""


class Action(Struct, frozen=True):
    """An action of `mrc testbed`."""

    run: Callable[[argparse.Namespace], int]
    """returns the exit code"""
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None
    needs: Needs = Needs.UP
    prints: bool = True
    """it has --json and the other options of what a command prints"""
    prepared: Callable[[argparse.Namespace], AbstractContextManager[Any]] | None = None
    """what surrounds it, from before it enters the namespaces of an ordinary user's test beds"""
