# SPDX-License-Identifier: Apache-2.0
"""Registers the transport with the Gloo of the installed torch."""

from __future__ import annotations

import ctypes
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from mrc.torch.abi import TorchError
from mrc.torch.build import built
from mrc.torch.calls import Shim
from mrc.torch.transport import Transport

_registered: list[Transport] = []  # at most one: torch's registry keeps it until the process ends


def register() -> None:
    """Compiles the transport if necessary and registers it; a second call does nothing.

    Opens no socket: that happens when the first process group is made. Raises TorchError.
    """
    if _registered:
        return
    torch: Any = sys.modules.get("torch") or import_module("torch")
    version, folder = str(torch.__version__), Path(torch.__file__).parent
    shim = Shim(ctypes.CDLL(str(built(version, folder))))
    transport = Transport(shim)
    if shim.register(transport) != 0:
        raise TorchError(f"torch {version}: its Gloo does not take the mrc transport")
    _registered.append(transport)


def process_group(store: Any, rank: int, size: int, timeout: Any) -> Any:
    """What `init_process_group("mrc")` makes: a group of Gloo over mrc."""
    register()
    gloo = import_module("torch.distributed").ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(interface="mrc")]
    options._timeout = timeout
    options._threads = 2 * len(options._devices)
    return gloo(store, rank, size, options)
