# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: I001
# The public names, in the order of importance.
from mrc.transfer.client import send as send
from mrc.transfer.server import receive as receive
from mrc.transfer.server import Receiver as Receiver
from mrc.transfer.server import Received as Received
from mrc.transfer.session import Offered as Offered
from mrc.transfer.results import Transfer as Transfer
from mrc.transfer.results import TransferredFile as TransferredFile
from mrc.transfer.results import FailedFile as FailedFile
from mrc.transfer.results import TransferPlane as TransferPlane
from mrc.transfer.results import Outage as Outage
from mrc.transfer.results import Waits as Waits
from mrc.transfer.messages import Announced as Announced
from mrc.transfer.progress import Progress as Progress
from mrc.transfer.progress import Event as Event
from mrc.transfer.progress import TransferPlanned as TransferPlanned
from mrc.transfer.progress import Connected as Connected
from mrc.transfer.progress import Disconnected as Disconnected
from mrc.connect.retry import Trying as Trying
from mrc.transfer.progress import Waiting as Waiting
from mrc.transfer.progress import Resumed as Resumed
from mrc.transfer.progress import Grew as Grew
from mrc.transfer.progress import Unchanged as Unchanged
from mrc.transfer.progress import Kept as Kept
from mrc.transfer.progress import Resumable as Resumable
from mrc.transfer.results import StoredBatch as StoredBatch
from mrc.transfer.session import TransferError as TransferError
from mrc.transfer.session import VerificationError as VerificationError
from mrc.transfer.limits import FileError as FileError

__all__: list[str]
