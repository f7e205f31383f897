# SPDX-License-Identifier: Apache-2.0
"""MRC (Multipath Reliable Connection) in software: remote writes sprayed over many paths.

    async with mrc.Context() as context, context.register(data) as region:
        async with context.connect("h1") as qp:
            await qp.write(region, remote)

Import every public name from here: submodules may move between releases. A name is loaded at its
first use. `mrc.blocking` is for scripts without asyncio; `mrc.examples` has programs to start from.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from mrc.aio.listener import Listener
    from mrc.aio.opening import Opening
    from mrc.aio.qp import QP, Write
    from mrc.binding.verbs import MR, RemoteMemory
    from mrc.config import CcParameters, ContextConfig
    from mrc.control.profiles import CcProfile, CcSettings, EvProfile, EvSelection, ProfileState
    from mrc.enums import (
        Access,
        CcKind,
        EventReason,
        EvState,
        Integrity,
        PlaneShares,
        QpState,
        WarningKind,
        WcOpcode,
        WcStatus,
    )
    from mrc.errors import (
        ArgumentError,
        BusyError,
        CompletionError,
        ConfigError,
        ConnectError,
        ConnectRefusedError,
        ConnectTimeoutError,
        InUseError,
        MrcError,
        NetlinkError,
        PathError,
        PathMtuError,
        PeerGoneError,
        ProtocolError,
        QueueFullError,
        ResolveError,
        StateError,
    )
    from mrc.events import (
        Completion,
        ContextWarning,
        EventsLost,
        EvEvent,
        EvInfo,
        Immediate,
        PlaneEvent,
        PlaneInfo,
        PlaneShareEvent,
        PortEvent,
        ProbeResult,
        QpErrorEvent,
        QpEvent,
        QpInfo,
        TraceEntry,
    )
    from mrc.fabric.hostconfig import HostConfig, HostPath, HostPeer, HostPort
    from mrc.observe.context import Context

    __version__: str

_HOMES = (  # in search order; modules that need the compiled engine come last
    "errors", "enums", "events", "config", "control.profiles", "fabric.hostconfig",
    "binding.verbs", "aio.opening", "aio.qp", "aio.listener", "observe.context",
)  # fmt: skip

__all__ = [
    "Context",
    "ContextConfig",
    "EvProfile",
    "EvSelection",
    "CcProfile",
    "CcParameters",
    "CcSettings",
    "ProfileState",
    "Listener",
    "Opening",
    "QP",
    "Write",
    "MR",
    "RemoteMemory",
    "Access",
    "CcKind",
    "EventReason",
    "EvState",
    "Integrity",
    "QpState",
    "WarningKind",
    "WcOpcode",
    "WcStatus",
    "Completion",
    "Immediate",
    "EvEvent",
    "PlaneEvent",
    "PlaneShareEvent",
    "PortEvent",
    "EventsLost",
    "QpErrorEvent",
    "QpEvent",
    "QpInfo",
    "PlaneInfo",
    "PlaneShares",
    "EvInfo",
    "ProbeResult",
    "TraceEntry",
    "ContextWarning",
    "HostConfig",
    "HostPath",
    "HostPeer",
    "HostPort",
    "MrcError",
    "ArgumentError",
    "CompletionError",
    "ConfigError",
    "BusyError",
    "ConnectError",
    "ConnectRefusedError",
    "ConnectTimeoutError",
    "InUseError",
    "NetlinkError",
    "PathError",
    "PathMtuError",
    "PeerGoneError",
    "ProtocolError",
    "QueueFullError",
    "ResolveError",
    "StateError",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _import_module("importlib.metadata").version("mrc-transport")
    if name in __all__:
        for home in _HOMES:
            module = _import_module(f"mrc.{home}")
            if hasattr(module, name):
                globals()[name] = value = getattr(module, name)
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
