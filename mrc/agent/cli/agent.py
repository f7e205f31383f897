# SPDX-License-Identifier: Apache-2.0
"""`mrc agent`: the control plane for programs that use MRC's or RDMA's C interface (libmrc)."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from mrc import versions
from mrc.agent import socket as agent_socket
from mrc.agent.agent import Agent
from mrc.agent.parameters import device_file
from mrc.agent.socket import AgentProfiles
from mrc.cli import endpoint
from mrc.cli.arguments import add
from mrc.cli.output import Output, UsageError
from mrc.cli.runner import run_async
from mrc.config import ContextConfig
from mrc.connect.security import Commands

HELP = "serve programs written for MRC's C interface or for RDMA verbs"
EXAMPLES = """\
examples:
  mrc agent --secret FILE               serve your programs, with hosts that have the same secret
  mrc agent --secret FILE --group rdma  and those of the group rdma
  mrc run -- ib_write_bw -d mrc0        start a program under the agent that runs
  mrc agent profiles                    its EV and CC profiles, and who listens by rdma_cm
"""
WHAT = """
what    profiles: show those of the agent that runs [be the agent]
--json  profiles: print JSON on stdout
"""
OPTIONS = """
--group NAME    members of this group may use the agent too [only your own programs, and root's]
--node          as root: make /dev/infiniband/mrc0, a file that UCX looks for
--idle SECONDS  end when no program was attached for this time [run until stopped]
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, WHAT, what={"nargs": "?", "choices": ["profiles"]})
    add_options(parser)
    add(parser, OPTIONS)
    endpoint.add_view_options(parser, listens=True)
    add(parser, "--quiet  print no notes on stderr")


def add_options(parser: Any) -> None:
    """The options that `mrc run` passes on to the agent that it starts."""
    endpoint.add_listening(parser, "TCP port of the agents of all hosts")
    endpoint.add_endpoint_options(parser)
    endpoint.add_trust_options(parser, listens=True, prints=f"without ${endpoint.CODE}")


_PASSED_ON = (
    "bind", "udp_port", "code", "allow", "peer", "secret", "ca", "cert", "key", "identity", "seal",
    "insecure",
)  # fmt: skip


def given(args: argparse.Namespace) -> dict[str, str]:
    """Those of `add_options` that were given, so that two processes can compare them: of a file the
    digest of its content.
    """
    chosen = {name: getattr(args, name) for name in _PASSED_ON}
    chosen |= {"port": args.port != versions.TCP_PORT and args.port, "interface": args.interfaces}
    return {
        f"--{name.replace('_', '-')}": _digest(value) for name, value in chosen.items() if value
    }


def _digest(value: object) -> str:
    if isinstance(value, list):
        return " ".join(sorted(map(_digest, value)))
    try:
        if isinstance(value, str | Path) and Path(value).is_file():
            return hashlib.sha256(Path(value).read_bytes()).hexdigest()
    except OSError:
        pass  # it is the agent that reports a file that it cannot read
    return str(value)


def run(args: argparse.Namespace) -> int:
    out = Output(args.prog, as_json=args.json, quiet=args.quiet, verbose=args.verbose)
    if args.what == "profiles":
        return _show(agent_socket.profiles(agent_socket.name_of(os.environ)), out)
    if args.json:
        raise UsageError(args.prog, "--json: only with profiles")
    group = None if args.group is None else agent_socket.group_number(args.group)
    trusted = endpoint.listening(
        args, out, Commands("mrc agent", "MRC_CODE=CODE mrc agent"), connects=True
    )
    config = ContextConfig(
        **endpoint.endpoint_settings(args), **trusted, **endpoint.view_settings(args)
    )
    return run_async(_serve(args, out, config, group))


async def _serve(
    args: argparse.Namespace, out: Output, config: ContextConfig, group: int | None
) -> int:
    name = agent_socket.name_of(os.environ)
    with device_file() if args.node else nullcontext(), agent_socket.listen(name) as opened:
        async with Agent(config, port=args.port, group=group) as agent:
            agent.options = given(args)
            serving = asyncio.ensure_future(agent.serve(opened, args.bind))
            out.note(f"agent of {agent.name}: socket {name}, TCP port {args.port}")
            if args.idle is None:
                await serving
            else:
                await _until_idle(agent, serving, args.idle)
    return 0


async def _until_idle(agent: Agent, serving: asyncio.Future[None], seconds: float) -> None:
    """Ends the agent when it has had no program for this time."""
    loop = asyncio.get_running_loop()
    since = loop.time()
    try:
        while loop.time() - max(since, agent.left) < seconds:
            done, _ = await asyncio.wait([serving], timeout=seconds / 4)
            if done:
                serving.result()
            if agent.programs:
                since = loop.time()
    finally:
        serving.cancel()
        await asyncio.wait([serving])


def _show(found: AgentProfiles, out: Output) -> int:
    """Prints the profiles as tables."""
    out.text("EV profile      state     QPs  paths")
    for ev in found.ev_profiles:
        denied = f"; denied: {' '.join(ev.denied)}" if ev.denied else ""
        out.text(f"{ev.name:15} {ev.state:8} {ev.qps:4}  {' '.join(ev.paths)}{denied}")
    out.text("\nCC profile      state     QPs  congestion control")
    for cc in found.cc_profiles:
        out.text(f"{cc.name:15} {cc.state:8} {cc.qps:4}  {cc.kind}")
    if found.rdma_cm:
        out.text("\nrdma_cm port  address          process")
    for row in found.rdma_cm:
        out.text(f"{row.port:12}  {row.address or 'any':15}  {row.pid}")
    out.result(found)
    return 0
