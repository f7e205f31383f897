# SPDX-License-Identifier: Apache-2.0
"""Operations of torch.distributed over four ranks; prints a digest of each result."""

import hashlib
import json
import sys
from typing import Any

import torch
import torch.distributed as dist


def told(name: str, *tensors: torch.Tensor) -> None:
    digest = hashlib.sha256()
    for each in tensors:
        digest.update(each.contiguous().view(torch.uint8).numpy().tobytes())
    print(json.dumps({name: digest.hexdigest()}), flush=True)


def main() -> None:
    # One store for both groups: a rank could still reach the store of the first one while it ends.
    store, rank, size = next(dist.rendezvous("env://"))
    mine = torch.randn(300_000, generator=torch.Generator().manual_seed(rank))
    start("first", store, rank, size)
    reductions(rank, size, mine)
    exchanges(rank, size, mine)
    objects(rank, size)
    sources(rank, size, mine)
    groups(rank, size, mine)
    if dist.get_backend() == "gloo":  # torch asks for this name
        dist.monitored_barrier()
    for _ in range(3):
        again(rank, size)
    dist.barrier()
    dist.destroy_process_group()
    start("second", store, rank, size)
    dist.all_reduce(mine)
    told("after the group was made again", mine)
    dist.destroy_process_group()


def start(name: str, store: dist.Store, rank: int, size: int) -> None:
    backend = sys.argv[1] if len(sys.argv) > 1 else "gloo"
    dist.init_process_group(
        backend, store=dist.PrefixStore(name, store), rank=rank, world_size=size
    )


def reductions(rank: int, size: int, mine: torch.Tensor) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for count in (0, 1, 1000, 300_000):
            value = (mine[:count] * 100).to(dtype)
            dist.all_reduce(value)
            told(f"all_reduce {dtype} {count}", value)
    part = torch.empty(300_000 // size)
    dist.reduce_scatter_tensor(part, mine.clone())
    told("reduce_scatter", part)
    value = mine.clone()
    dist.reduce(value, 3)  # what is left in the other ranks is not defined
    told("reduce", value if rank == 3 else mine)


def exchanges(rank: int, size: int, mine: torch.Tensor) -> None:
    strided = mine[:250_000].reshape(500, 500).t()
    value = strided.contiguous()
    dist.broadcast(value, 2)
    told("broadcast", value)
    gathered = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(gathered, mine)
    told("all_gather", *gathered)
    out = torch.empty(300_000)
    dist.all_to_all_single(out, mine)
    told("all_to_all_single", out)
    counts = [1000 * (rank + to + 1) for to in range(size)]
    arrive = [1000 * (rank + come + 1) for come in range(size)]
    out = torch.empty(sum(arrive))
    dist.all_to_all_single(out, mine[: sum(counts)], arrive, counts)
    told("all_to_all_single uneven", out)
    parts = [torch.empty(1000) for _ in range(size)] if rank == 1 else []
    dist.gather(mine[:1000], parts or None, 1)
    dist.scatter(out[:1000], parts or None, 1)
    told("gather, scatter", *parts, out[:1000])


def objects(rank: int, size: int) -> None:
    """Pickled objects from all ranks, and from one."""
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, {"rank": rank, "text": "x" * 5000 * rank})
    assert [each["rank"] for each in everyone] == list(range(size)), everyone
    assert all(len(each["text"]) == 5000 * each["rank"] for each in everyone)
    found = [{"rank": 2, "text": "y" * 9000} if rank == 2 else None]
    dist.broadcast_object_list(found, 2)
    assert found[0] == {"rank": 2, "text": "y" * 9000}
    mine = [None]
    dist.scatter_object_list(mine, [f"z{i}" * 3000 for i in range(size)] if rank == 0 else None, 0)
    assert mine == [f"z{rank}" * 3000]
    if rank == 0:
        dist.send_object_list(["w" * 20_000, 0], 3)
    if rank == 3:
        both = [None, None]
        dist.recv_object_list(both, 0)
        assert both == ["w" * 20_000, 0]


def sources(rank: int, size: int, mine: torch.Tensor) -> None:
    """Sends to rank 0, which receives from any rank; large and small."""
    for count in (1, 3, 100_000):  # Gloo over TCP refuses 0 from any rank
        if rank != 0:
            dist.send(mine[:count] + rank, 0, tag=count)
            continue
        seen = {}
        for _ in range(size - 1):
            value = torch.empty(count)
            source = dist.recv(value, tag=count)
            seen[source] = value
        assert sorted(seen) == list(range(1, size)), seen
        told(f"any source {count}", *(seen[each] for each in sorted(seen)))
    if rank == 0:
        dist.send(torch.empty(0), 1)
    if rank == 1:
        assert dist.recv(torch.empty(0), 0) == 0
    # Both directions at once, and two messages of one tag in order.
    right, left = (rank + 1) % size, (rank - 1) % size
    first, second = torch.empty(50_000), torch.empty(50_000)
    work = [
        dist.isend(mine[:50_000], right), dist.isend(mine[50_000:100_000], right),
        dist.irecv(first, left), dist.irecv(second, left),
    ]  # fmt: skip
    for each in work:
        each.wait()
    told("ring", first, second)


def groups(rank: int, size: int, mine: torch.Tensor) -> None:
    """Sub-groups share the connections of the whole."""
    even, odd = dist.new_group([0, 2]), dist.new_group([1, 3])
    ours = odd if rank % 2 else even
    pending = []
    values = [mine[i * 10_000 : (i + 1) * 10_000].clone() for i in range(8)]
    for i, value in enumerate(values):
        pending.append(dist.all_reduce(value, group=ours if i % 2 else None, async_op=True))
    for each in pending:
        each.wait()
    told("groups", *values)


def again(rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))
    value = torch.full((5000,), float(rank))
    dist.all_reduce(value, group=group)
    assert value[0] == size * (size - 1) / 2
    dist.destroy_process_group(group)


if __name__ == "__main__":
    main()
