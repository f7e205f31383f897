# SPDX-License-Identifier: Apache-2.0
"""What runs at the end of `import torch`. It imports little, because it runs in each program."""

from __future__ import annotations

import os
import sys


def autoload() -> None:
    """Registers the backend "mrc"; with GLOO_DEVICE_TRANSPORT=MRC also the transport itself.

    A torch that does not fit raises here only if the variable asks for mrc.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return
    if os.environ.get("GLOO_DEVICE_TRANSPORT") == "MRC":
        from mrc.torch.transport import register

        register()
    if "mrc" not in distributed.Backend.backend_list:
        distributed.Backend.register_backend("mrc", _group, devices=["cpu", "cuda"])


def _group(store: object, rank: int, size: int, timeout: object) -> object:
    from mrc.torch.transport import process_group

    return process_group(store, rank, size, timeout)
