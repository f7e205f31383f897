# SPDX-License-Identifier: Apache-2.0
"""UCX's transport rc_verbs, unmodified. It looks for a device node, which `mrc agent --node` makes;
here in a mount namespace whose /dev is its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
from ports import free_port
from slowness import limit

from mrc.agent import socket as agent_socket

UNSHARE = ("unshare", "-m", "-p", "-f", "--kill-child", "--mount-proc")
SCRIPT = """\
set -e
mount --make-rprivate /
mkdir "$1"
mount --rbind /dev "$1"
mount -t tmpfs -o mode=755 mrc /dev
mkdir /dev/shm
mount --bind "$1/shm" /dev/shm
for each in null zero random urandom; do
  touch "/dev/$each"
  mount --bind "$1/$each" "/dev/$each"
done
$AGENT &
agent=$!
until [ -e /dev/infiniband/mrc0 ]; do kill -0 $agent; done
$RUN $TEST &
server=$!
until grep -q ":$PORT_HEX 00000000" /proc/net/tcp; do kill -0 $server; done
$RUN $TEST 127.0.0.1
wait $server
kill $agent
wait $agent || true
! [ -e /dev/infiniband/mrc0 ]
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
@pytest.mark.skipif(
    not shutil.which("ucx_perftest"), reason="needs ucx_perftest: apt-get install ucx-utils"
)
@pytest.mark.parametrize("test", ["am_lat", "put_bw", "get -D bcopy", "fadd"])
def test_ucx_perftest(tmp_path: object, test: str) -> None:
    mrc, ucx = f"{sys.executable} -m mrc", free_port()
    agent = f"{mrc} agent --node --port {free_port()} --insecure --bind 127.0.0.1 -B lo --quiet"
    environment = os.environ | {
        agent_socket.ENVIRONMENT: f"@mrc-test-{os.getpid()}",
        "AGENT": agent,
        "RUN": f"{mrc} run --rc --",
        "TEST": f"ucx_perftest -x rc_verbs -d mrc0:1 -t {test} -n 100 -s 8 -p {ucx}",
        "PORT_HEX": f"{ucx:04X}",
    }
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", SCRIPT, "sh", f"{tmp_path}/dev"], env=environment,
        capture_output=True, text=True, timeout=limit(60),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^Final: +100 ", done.stdout, re.MULTILINE)) >= 1, done.stdout
