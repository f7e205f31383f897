# SPDX-License-Identifier: Apache-2.0
"""One message of 1 GiB and 1 byte from rank 0 to rank 1."""

import hashlib
import json

import torch
import torch.distributed as dist

BYTES = (1 << 30) + 1


def main() -> None:
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        value = torch.arange(BYTES, dtype=torch.int32).to(torch.uint8)
        dist.send(value, 1)
    else:
        value = torch.empty(BYTES, dtype=torch.uint8)
        dist.recv(value, 0)
    print(json.dumps({"digest": hashlib.sha256(value.numpy()).hexdigest()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
