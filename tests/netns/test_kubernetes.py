# SPDX-License-Identifier: Apache-2.0
"""The commands of the Kubernetes manifests in mrc/examples, as a pod would run them: in namespaces
with the interfaces of Multus, as the user of the manifest, without capabilities, over a read-only
root.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_interface
from pathlib import Path

import pytest
from kubernetes_pods import Pod, pods
from netns.conftest import fresh_name, needs_real_root
from netns.plain import address, ip, join, until_running
from netns.processes import Mrc
from netns.shown import ROOT, shown_to_all
from printed import printed

from mrc.linux import netns

pytestmark = needs_real_root

PODS = {pod.name: pod for pod in pods()}
PLACE = "/mnt"  # of the volumes
NOTHING = "0000000000000000"


class Cluster:
    """Two pods, joined in each plane."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)
        self.running: list[Mrc] = []
        self.places = {name: f"mrc-{fresh_name()}" for name in ("there", "here")}

    def prepare(self, there: Pod, here: Pod) -> None:
        for place in self.places.values():
            netns.create(place)
            ip(f"-n {place} link set lo up")
        for one, other in zip(there.networks, here.networks, strict=True):
            name = one["interface"]
            assert other["interface"] == name
            join(self.places["there"], name, self.places["here"], name, mtu=9000)
            address(self.places["there"], name, *one["ips"])
            address(self.places["here"], name, *other["ips"])
            until_running(self.places["here"], name)
        key = [sys.executable, "-m", "mrc", "key", "--secret", str(self.folder / "key")]
        subprocess.run(key, check=True, stdout=subprocess.DEVNULL)

    def start(self, place: str, pod: Pod, *words: str) -> Mrc:
        """Starts `mrc` with the arguments of a pod, or this command in its place."""
        ids = pod.spec["securityContext"]
        argv = ["ip", "netns", "exec", self.places[place], *shown_to_all()]
        argv += ["sh", "-ec", self._mounts(pod), "sh", "setpriv", "--no-new-privs"]
        argv += ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
        argv += [f"--reuid={ids['runAsUser']}", f"--regid={ids['runAsGroup']}"]
        argv += [f"--groups={ids['fsGroup']}", "--"]
        argv += words or [sys.executable, "-m", "mrc", *(_moved(each, pod) for each in pod.args)]
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
        pipe = subprocess.PIPE
        self.running.append(
            Mrc(subprocess.Popen(argv, env=env, stdout=pipe, stderr=pipe, text=True))
        )
        return self.running[-1]

    def _mounts(self, pod: Pod) -> str:
        """Commands that mount the volumes as the kubelet does, and make all else read-only."""
        group = pod.spec["securityContext"]["fsGroup"]
        lines = [f"mkdir -p {PLACE}; mount --bind {self.folder} {PLACE}; cd {PLACE}"]
        for mount in pod.container["volumeMounts"]:
            name = mount["name"]
            lines.append(f"mkdir -p {name}; chown root:{group} {name}; chmod 2775 {name}")
            if name == "secret":
                lines.append(f"cp key secret/secret; chown root:{group} secret/secret")
                lines.append("chmod 440 secret/secret; mount --bind -o ro secret secret")
        lines.append("for each in / /tmp /run /var; do")
        lines.append("  ! mountpoint -q $each || mount -o remount,bind,ro $each; done")
        return "\n".join([*lines, 'exec "$@"'])

    def end(self) -> None:
        for program in self.running:
            program.end()
        for place in self.places.values():
            netns.remove(place)


def _moved(text: str, pod: Pod) -> str:
    """An argument with the path of a volume here: those of the manifest do not exist."""
    for mount in pod.container["volumeMounts"]:
        if text.startswith(mount["mountPath"]):
            return text.replace(mount["mountPath"], f"{PLACE}/{mount['name']}", 1)
    return text


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        yield cluster
    finally:
        cluster.end()


def without_privilege(program: Mrc) -> None:
    """Of the program itself: each process on the way has become the next."""
    status = Path(f"/proc/{program.process.pid}/status").read_text()
    told = dict(line.split(":\t", 1) for line in status.splitlines())
    assert {told[key] for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {NOTHING}
    assert told["NoNewPrivs"] == "1" and "0" not in told["Uid"].split()


def test_perf__needs_no_privilege(cluster: Cluster) -> None:
    server, client = PODS["mrc-perf"], PODS["mrc-perf-client"]
    cluster.prepare(server, client)
    waiting = cluster.start("there", server).until_listening()
    without_privilege(waiting)
    args = [_moved(each, client) for each in client.args]
    measuring = cluster.start("here", client, sys.executable, "-m", "mrc", *args, "-t", "1")
    (result,) = printed("perf", measuring.ends(0))["results"]
    sent = {each["plane"]: each["sent_bytes"] for each in result["client"]["planes"]}
    assert set(sent) == {1, 2} and all(sent.values())


@pytest.mark.default
def test_recv__needs_no_privilege(cluster: Cluster) -> None:
    receiver, sender = PODS["mrc-recv"], PODS["mrc-perf-client"]
    cluster.prepare(receiver, sender)
    waiting = cluster.start("there", receiver).until_listening()
    without_privilege(waiting)
    (address,) = receiver.networks[0]["ips"]
    content = os.urandom(1 << 20)
    (cluster.folder / "file").write_bytes(content)
    send = ["send", f"{PLACE}/file", str(ip_interface(address).ip)]
    send += ["--secret", f"{PLACE}/secret/secret", "-B", "net1", "-B", "net2"]
    cluster.start("here", sender, sys.executable, "-m", "mrc", *send).ends(0)
    assert (cluster.folder / "inbox" / "file").read_bytes() == content


def test_root__is_read_only(cluster: Cluster) -> None:
    """Of what this test takes for a pod."""
    cluster.prepare(PODS["mrc-perf"], PODS["mrc-perf-client"])
    for folder in ("/tmp", "/var/tmp", f"{PLACE}/secret"):
        trying = cluster.start("here", PODS["mrc-perf"], "touch", f"{folder}/x")
        trying.ends(1)
        assert "Read-only file system" in trying.lines[-1] or "denied" in trying.lines[-1]
