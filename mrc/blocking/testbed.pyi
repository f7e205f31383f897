# SPDX-License-Identifier: Apache-2.0
# Written by tools/stubs from the declarations of mrc. Do not edit.
# ruff: noqa
from __future__ import annotations
from collections.abc import Mapping
from collections.abc import Sequence
from mrc.blocking import Context
from mrc.blocking.mirror import Blocking
from mrc.config import ContextConfig
from mrc.linux.namespace import NetworkNamespace
from mrc.testbed import BedHost as BedHost
from mrc.testbed import BedProgram as BedProgram
from mrc.testbed import Drained as Drained
from mrc.testbed import FabricCounters as FabricCounters
from mrc.testbed import Healed as Healed
from mrc.testbed import LinkCounters as LinkCounters
from mrc.testbed import Outside as Outside
from mrc.testbed import RealHost as RealHost
from mrc.testbed import Removed as Removed
from mrc.testbed import Shape as Shape
from mrc.testbed import Status as Status
from mrc.testbed import TargetFault as TargetFault
from mrc.testbed.library import Argument
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

def up(
    topology: str | Path | None = None,
    *,
    name: str | None = None,
    hosts: int | None = None,
    planes: int | None = None,
    t0: int | None = None,
    t1: int | None = None,
    pods: int | None = None,
    t2: int | None = None,
    mtu: int | None = None,
    rate: str | None = None,
    delay: str | None = None,
    jitter: str | None = None,
    buffer: str | None = None,
    fabric: str = ...,
    ecn_low: str | None = None,
    ecn_high: str | None = None,
    trim: bool | None = None,
    outside: Outside | None = None,
) -> Bed: ...
def existing(name: str = "lab") -> Bed: ...

class Bed(Blocking):
    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> Shape: ...
    def close(self) -> None: ...
    def down(self) -> Removed: ...
    @property
    def hosts(self) -> tuple[Host, ...]: ...
    def host(self, name: str) -> Host: ...
    def fail(
        self,
        target: str,
        mode: str = ...,
        *,
        loss: float | None = None,
        rate: str | None = None,
        mtu: int | None = None,
        corrupt: float | None = None,
        duplicate: float | None = None,
        reorder: float | None = None,
        delay: str | None = None,
        jitter: str | None = None,
    ) -> BedFault: ...
    def heal(self, target: str = "all") -> Healed: ...
    def drain(self, target: str) -> Drained: ...
    def undrain(self, target: str = "all") -> Drained: ...
    def status(self, *, seconds: float = 0.2) -> Status: ...
    @property
    def closed(self) -> bool: ...

class Host:
    @property
    def name(self) -> str: ...
    def context(self, config: ContextConfig | None = None, /, **fields: Any) -> Context: ...
    def namespace(self) -> NetworkNamespace: ...
    def run(
        self,
        argv: Sequence[Argument],
        *,
        input: str | None = None,
        timeout: float | None = None,
        check: bool = False,
        env: Mapping[str, str] | None = None,
        cwd: Argument | None = None,
        user: str | None = None,
    ) -> CompletedProcess[str]: ...
    def start(
        self,
        argv: Sequence[Argument],
        *,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        env: Mapping[str, str] | None = None,
        cwd: Argument | None = None,
        user: str | None = None,
    ) -> HostCommand: ...

class HostCommand(Blocking):
    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def wait(self, *, timeout: float | None = None) -> int: ...
    def communicate(self, input: bytes | None = None) -> tuple[bytes | None, bytes | None]: ...
    def write(self, data: bytes) -> None: ...
    def readline(self, *, timeout: float | None = None) -> bytes: ...
    def send_signal(self, signum: int) -> None: ...

class BedFault(Blocking):
    @property
    def fault(self) -> TargetFault: ...
    def heal(self) -> Healed: ...

__all__: list[str]
