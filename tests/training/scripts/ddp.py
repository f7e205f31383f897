# SPDX-License-Identifier: Apache-2.0
"""DDP of a small model: a training script that knows nothing of mrc."""

import argparse
import hashlib
import json
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--group", default="gloo")
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    dist.init_process_group(args.group)
    try:
        train(args)
    except RuntimeError as error:
        print(json.dumps({"error": str(error), "time": time.monotonic()}), flush=True)
        raise
    dist.destroy_process_group()


def train(args: argparse.Namespace) -> None:
    rank, width = dist.get_rank(), args.width
    torch.manual_seed(1)
    layers = [torch.nn.Linear(width, width) for _ in range(3)]
    model = DistributedDataParallel(
        torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + rank)
    data = torch.randn(16 * args.steps, width, generator=generator)
    batches = torch.utils.data.DataLoader(data, batch_size=16, num_workers=args.workers)
    for step, batch in enumerate(batches):
        began = time.monotonic()
        optimizer.zero_grad()
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        seconds = time.monotonic() - began
        if rank == 0:
            print(json.dumps({"step": step, "loss": total.item(), "seconds": seconds}), flush=True)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    print(json.dumps({"rank": rank, "weights": digest.hexdigest()}), flush=True)


if __name__ == "__main__":
    main()
