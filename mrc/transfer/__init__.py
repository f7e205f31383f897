# SPDX-License-Identifier: Apache-2.0
"""Files over writes: the receiver opens its file to the peer, and the peer writes into it."""

from mrc.transfer.files import FileChangedError, FileError, OutputDirectory
from mrc.transfer.joined import Joins
from mrc.transfer.receiver import Limits, receive_files
from mrc.transfer.sender import check_sources, send_files
from mrc.transfer.session import (
    SERVICE,
    Session,
    TransferError,
    TransferredFile,
    VerificationError,
    accept_session,
    connect_session,
)

__all__ = [
    "send_files",
    "receive_files",
    "connect_session",
    "accept_session",
    "check_sources",
    "Joins",
    "Limits",
    "OutputDirectory",
    "Session",
    "TransferredFile",
    "FileError",
    "FileChangedError",
    "TransferError",
    "VerificationError",
    "SERVICE",
]
