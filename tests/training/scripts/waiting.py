# SPDX-License-Identifier: Apache-2.0
"""Two ranks, of which each waits for a message that the other never sends, for so many seconds: the
arguments are the ranks' timeouts.
"""

import datetime
import json
import os
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    seconds = float(sys.argv[1 + int(os.environ["RANK"])]) if len(sys.argv) > 1 else 1800.0
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))
    dist.barrier()
    print(json.dumps({"step": 0}), flush=True)
    try:
        wait()
    finally:
        if len(sys.argv) > 1:
            wait()


def wait() -> None:
    try:
        dist.recv(torch.empty(1), 1 - dist.get_rank())
    except RuntimeError as error:
        print(json.dumps({"error": str(error), "time": time.monotonic()}), flush=True)
        raise


if __name__ == "__main__":
    main()
