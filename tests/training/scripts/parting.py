# SPDX-License-Identifier: Apache-2.0
"""All ranks send to rank 0, then each ends in order as soon as its own part is done."""

import json
import sys

import torch
import torch.distributed as dist


def main() -> None:
    floats = int(sys.argv[1])
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    data = torch.full((floats,), float(rank))
    if rank == 0:
        for other in range(1, size):
            dist.recv(data, other)
            assert bool((data == other).all())
    else:
        dist.send(data, 0)
    print(json.dumps({"done": rank}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
