# SPDX-License-Identifier: Apache-2.0
"""Two ranks, of which each waits for a message that the other never sends."""

import json
import time

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    dist.barrier()
    print(json.dumps({"step": 0}), flush=True)
    try:
        dist.recv(torch.empty(1), 1 - dist.get_rank())
    except RuntimeError as error:
        print(json.dumps({"error": str(error), "time": time.monotonic()}), flush=True)
        raise


if __name__ == "__main__":
    main()
