# SPDX-License-Identifier: Apache-2.0
"""The last rank leaves in order. Operations with it raise; the other ranks go on."""

import json

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    dist.barrier()
    if rank < last:
        try:
            dist.recv(torch.empty(1), last)
        except RuntimeError as error:
            print(json.dumps({"error": str(error)}), flush=True)
        value = torch.full((100_000,), float(rank))
        if rank == 0:
            dist.send(value, 1)
            dist.recv(value, 1)
        else:
            other = torch.empty_like(value)
            dist.recv(other, 0)
            dist.send(value, 0)
            value = other
        print(json.dumps({"received": value[0].item()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
