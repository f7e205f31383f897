# SPDX-License-Identifier: Apache-2.0
"""Rank 1 is killed once. torchrun restarts all ranks, and the job ends."""

import json
import os
import signal

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    value = torch.ones(100_000)
    dist.all_reduce(value)
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if restarts == 0 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(value)
    print(json.dumps({"restarts": restarts, "sum": value[0].item()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
