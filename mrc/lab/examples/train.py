# SPDX-License-Identifier: Apache-2.0
"""A training job rides out the death of a plane: `python -m mrc.lab.examples.train`, as root.

Two ranks train a small model with DDP, in two hosts of a test bed with four planes of 500 Mbit/s.
Plane 2 falls silent after a third of the steps and returns after two thirds. The same training
over Gloo's TCP, on the loopback interface, shows that losses and weights are the same to the bit.
The table is the output. Needs torch and g++: `pip install 'mrc-transport[torch]'`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from mrc.errors import MrcError
from mrc.testbed.bed import Testbed

STEPS = 90
WIDTH = 1024  # three layers: 12.6 MB of gradients
RANKS = 2
NAME = "train"
PLANE = "plane:2"


def train(steps: int = STEPS) -> None:
    """The training script. It knows nothing of mrc."""
    torch: Any = import_module("torch")
    dist: Any = import_module("torch.distributed")
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)]
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(steps):
        x = torch.randn(16, WIDTH, generator=generator)
        began = time.monotonic()
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        took = time.monotonic() - began
        print(json.dumps({"step": step, "loss": loss.item(), "seconds": took}), flush=True)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    print(json.dumps({"weights": digest.hexdigest()}), flush=True)
    dist.destroy_process_group()


def start(
    rank: int, argv: Sequence[str], environment: dict[str, str], **variables: str
) -> subprocess.Popen[str]:
    """A rank, started as torchrun would."""
    environment = {**environment, "RANK": str(rank), "WORLD_SIZE": str(RANKS), **variables}
    environment |= {"LOCAL_RANK": "0", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True)


def over_tcp() -> list[str]:
    """What rank 0 prints over Gloo's TCP, on the loopback interface, without its times."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_DEVICE_TRANSPORT": "TCP"}
    ranks = [start(rank, COMMAND, dict(os.environ), **where) for rank in range(RANKS)]
    return [bits(json.loads(line)) for line in finished(ranks)]


def over_mrc(bed: Testbed) -> tuple[list[str], list[float]]:
    """The same over mrc while a plane fails; and the seconds of each step."""
    where = {"MASTER_ADDR": "fd00:c::1", "MASTER_PORT": "29500", "GLOO_DEVICE_TRANSPORT": "MRC"}
    ranks = []
    for rank in range(RANKS):
        argv, environment = bed.host_command(f"h{rank}", COMMAND)
        ranks.append(start(rank, argv, environment, **where))
    lines, seconds = [], []
    for text in finished(ranks):
        line = json.loads(text)
        lines.append(bits(line))
        seconds += [line["seconds"]] if "step" in line else []
        if line.get("step") == STEPS // 3 - 1:
            bed.fail(PLANE)
        if line.get("step") == 2 * STEPS // 3 - 1:
            bed.heal(PLANE)
    return lines, seconds


COMMAND = [sys.executable, "-P", "-m", "mrc.lab.examples.train"]


def bits(line: dict[str, Any]) -> str:
    return str(line.get("weights") or float(line["loss"]).hex())


def finished(ranks: list[subprocess.Popen[str]]) -> Any:
    """Yields the lines of rank 0, then waits for all ranks."""
    try:
        assert ranks[0].stdout is not None
        yield from ranks[0].stdout
        for rank in ranks:
            assert rank.stdout is not None
            rank.stdout.read()  # of the others: it fits the pipe while rank 0 runs
            if rank.wait():
                raise MrcError(f"a rank failed with exit code {rank.returncode}")
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            assert rank.stdout is not None
            rank.stdout.close()


def main() -> None:
    if importlib.util.find_spec("torch") is None:
        sys.exit("torch is not installed: pip install torch")
    print(f"{RANKS} ranks, {STEPS} steps of DDP, four planes of 500 Mbit/s")
    try:
        expected = over_tcp()
        with Testbed(NAME) as bed:
            lines, seconds = over_mrc(bed)
    except MrcError as error:
        sys.exit(f"{error}")
    third = STEPS // 3
    print(f"\n{'':22}{'median step':>12}{'longest step':>14}")
    for number, phase in enumerate(("all planes work", f"{PLANE} is silent", f"{PLANE} is back")):
        part = seconds[max(third * number, 3) : third * (number + 1)]  # the first steps warm up
        median, longest = statistics.median(part) * 1e3, max(part) * 1e3
        print(f"{phase:22}{median:9.0f} ms{longest:11.0f} ms")
    same = lines == expected
    print(f"\nlosses and weights {'are bit for bit those' if same else 'differ from those'} of TCP")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    train() if "RANK" in os.environ else main()
