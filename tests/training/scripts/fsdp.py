# SPDX-License-Identifier: Apache-2.0
"""FSDP2 over a DeviceMesh of CPUs, with a second mesh dimension when there are four ranks."""

import hashlib
import json

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
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


if __name__ == "__main__":
    main()
