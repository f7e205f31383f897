# SPDX-License-Identifier: Apache-2.0
"""One rank of a job, which does not import mrc: `ranks.py JOB ARGUMENTS...`. Each prints JSON
objects, one a line.
"""

import argparse
import datetime
import hashlib
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def ddp() -> None:
    """DDP of a small model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--group", default="gloo")
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args(sys.argv[2:])
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


def fsdp() -> None:
    """FSDP2 over a DeviceMesh of CPUs, with a second mesh dimension when there are four ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    size = dist.get_world_size()
    shape, names = ((2, size // 2), ("replicate", "shard")) if size >= 4 else ((size,), ("shard",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(3)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(10):
        x = torch.randn(16, 256, generator=generator)
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        print(json.dumps({"step": step, "loss": loss.item(), "seconds": 0.0}), flush=True)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.full_tensor().detach().numpy().tobytes())
    print(json.dumps({"weights": digest.hexdigest()}), flush=True)
    dist.destroy_process_group()


def elastic() -> None:
    """Rank 1 is killed once. torchrun restarts all ranks, and the job ends."""
    dist.init_process_group("gloo")
    value = torch.ones(100_000)
    dist.all_reduce(value)
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if restarts == 0 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(value)
    print(json.dumps({"restarts": restarts, "sum": value[0].item()}), flush=True)
    dist.destroy_process_group()


def leaving() -> None:
    """The last rank leaves in order. Operations with it raise; the other ranks go on."""
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


def parting() -> None:
    """All ranks send to rank 0, then each ends in order as soon as its own part is done."""
    floats = int(sys.argv[2])
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


def waiting() -> None:
    """Two ranks, of which each waits for a message that the other never sends. The arguments are
    the ranks' timeouts, in seconds, which count from when both are there.
    """
    store, rank, size = next(dist.rendezvous("env://"))
    store.set(f"rank {rank}", "is here")
    store.wait([f"rank {other}" for other in range(size)])
    seconds = float(sys.argv[2 + rank]) if len(sys.argv) > 2 else 1800.0
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("group", store), rank=rank, world_size=size,
        timeout=datetime.timedelta(seconds=seconds),
    )  # fmt: skip
    dist.barrier()
    print(json.dumps({"step": 0}), flush=True)
    try:
        wait()
    finally:
        if len(sys.argv) > 2:
            wait()


def wait() -> None:
    try:
        dist.recv(torch.empty(1), 1 - dist.get_rank())
    except RuntimeError as error:
        print(json.dumps({"error": str(error), "time": time.monotonic()}), flush=True)
        raise


BYTES = (1 << 30) + 1


def large() -> None:
    """One message of 1 GiB and 1 byte from rank 0 to rank 1."""
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
    globals()[sys.argv[1]]()
