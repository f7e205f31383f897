# SPDX-License-Identifier: Apache-2.0
# Written by tools/stubs from the declarations of mrc. Do not edit.
# ruff: noqa
from __future__ import annotations
import os
from collections.abc import Sequence
from mrc.blocking import Context
from mrc.blocking.mirror import Blocking
from mrc.config import ContextConfig
from mrc.transfer import Announced as Announced
from mrc.transfer import Connected as Connected
from mrc.transfer import Disconnected as Disconnected
from mrc.transfer import Event as Event
from mrc.transfer import FailedFile as FailedFile
from mrc.transfer import FileError as FileError
from mrc.transfer import Grew as Grew
from mrc.transfer import Kept as Kept
from mrc.transfer import Offered as Offered
from mrc.transfer import Outage as Outage
from mrc.transfer import Progress as Progress
from mrc.transfer import Received as Received
from mrc.transfer import Resumable as Resumable
from mrc.transfer import Resumed as Resumed
from mrc.transfer import StoredBatch as StoredBatch
from mrc.transfer import Transfer as Transfer
from mrc.transfer import TransferError as TransferError
from mrc.transfer import TransferPlane as TransferPlane
from mrc.transfer import TransferPlanned as TransferPlanned
from mrc.transfer import TransferredFile as TransferredFile
from mrc.transfer import Trying as Trying
from mrc.transfer import Unchanged as Unchanged
from mrc.transfer import VerificationError as VerificationError
from mrc.transfer import Waiting as Waiting
from mrc.transfer import Waits as Waits
from mrc.transfer.account import OnProgress
from mrc.transfer.client import Paths
from mrc.transfer.session import Accept
from typing import Self

def send(
    paths: Paths,
    host: str,
    *,
    port: int = 4791,
    name: str = "",
    follow: bool = False,
    links: bool = False,
    exclude: Sequence[str] = (),
    update: bool = False,
    no_meta: bool = False,
    no_resume: bool = False,
    rate: float = 0.0,
    timeout: float = 5.0,
    retry: float = 60.0,
    wait: float = 0.0,
    context: Context | None = None,
    config: ContextConfig | None = None,
    list_files: bool = True,
    on_progress: OnProgress | None = None,
) -> Transfer: ...
def receive(
    folder: str | os.PathLike[str] | int,
    *,
    port: int = 4791,
    bind: str | None = None,
    once: bool = False,
    overwrite: bool = False,
    any_name: bool = False,
    no_meta: bool = False,
    no_resume: bool = False,
    fsync: bool = False,
    max_bytes: int = 17592186044416,
    max_files: int = 1048576,
    rate: float = 0.0,
    idle: float = 60.0,
    memory: int = 268435456,
    bins: int = 0,
    context: Context | None = None,
    config: ContextConfig | None = None,
    accept: Accept | None = None,
    list_files: bool = True,
    on_progress: OnProgress | None = None,
) -> Receiver: ...

class Receiver(Blocking):
    def __iter__(self) -> Self: ...
    def close(self) -> None: ...
    def until_idle(self) -> None: ...

__all__: list[str]
