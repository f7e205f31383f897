# SPDX-License-Identifier: Apache-2.0
"""tools/image: its image holds what it should, and runs the pods of mrc/examples/kubernetes in a
runtime for OCI containers, without any privilege.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes_pods import Pod, pods
from netns.conftest import fresh_name
from netns.plain import address, ip, join, until_running
from netns.processes import Mrc
from printed import printed
from project_text import ROOT

from mrc.linux import netns

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PODS = {pod.name: pod for pod in pods()}
CAPABILITIES = ("bounding", "effective", "inheritable", "permitted", "ambient")


def run(*command: str | Path) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked image: config.json and rootfs."""
    if netns.lacks() or int(Path("/proc/self/uid_map").read_text().split()[2]) == 1:
        pytest.skip("tools/image requires root")
    if shutil.which("runc") is None:
        pytest.skip("needs runc: apt-get install runc")
    folder = tmp_path_factory.mktemp("image")
    folder.chmod(0o755)
    run(ROOT / "tools" / "wheel", "--output", folder / "dist")
    (wheel,) = (folder / "dist").glob("*.whl")
    archive = folder / "made" / "mrc.oci.tar"
    run(ROOT / "tools" / "image", "--wheel", wheel, "--output", archive, "--tag", "0.4")
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]
    layout = folder / "layout"
    layout.mkdir()
    run("tar", "--extract", f"--file={archive}", f"--directory={layout}")
    run("umoci", "unpack", f"--image={layout}:mrc:0.4", folder / "bundle")
    return folder / "bundle"


def test_image__its_settings(bundle: Path) -> None:
    config = json.loads((bundle / "config.json").read_text())
    assert config["process"]["args"] == ["mrc", "--help"]
    user = {key: config["process"]["user"][key] for key in ("uid", "gid")}
    assert user == {"uid": 65532, "gid": 65532}
    for pod in PODS.values():
        ids = pod.spec["securityContext"]
        assert user == {"uid": ids["runAsUser"], "gid": ids["runAsGroup"]}
    assert config["annotations"]["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_image__holds_nothing_of_this_machine(bundle: Path) -> None:
    root = bundle / "rootfs"
    for name in ("etc/resolv.conf", "etc/hosts", "given", "made", "etc/pip.conf"):
        assert not (root / name).exists(), name
    assert not list((root / "usr/local/share/ca-certificates").iterdir())
    assert not list((root / "root").iterdir())
    every = (Path(where, name) for where, _, names in os.walk(root) for name in names)
    modes = (path.lstat().st_mode for path in every if not path.is_symlink())
    assert not [mode for mode in modes if mode & (stat.S_ISUID | stat.S_ISGID)]


class Runtime:
    """runc with the containers of pods."""

    def __init__(self, bundle: Path, folder: Path) -> None:
        self.bundle, self.folder = bundle, folder
        folder.mkdir()
        self.running: list[Mrc] = []
        self.names: list[str] = []
        folder.chmod(0o755)

    def runc(self, *words: str | Path) -> list[str]:
        state = f"--root={self.folder}/state"
        return ["runc", state, *map(str, words)]

    def start(self, pod: Pod, *args: str) -> Mrc:
        """Runs the container of a pod, with further arguments, in a namespace of its name."""
        name = f"{pod.name}-{fresh_name()}"
        own = self.folder / name
        own.mkdir()
        config = json.loads((self.bundle / "config.json").read_text())
        (own / "config.json").write_text(json.dumps(self._changed(config, pod, args)))
        self.names.append(name)
        pipe = subprocess.PIPE
        command = self.runc("run", f"--bundle={own}", name)
        self.running.append(Mrc(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)))
        return self.running[-1]

    def _changed(self, config: dict[str, Any], pod: Pod, args: tuple[str, ...]) -> dict[str, Any]:
        """As a kubelet does, from the security context and the volumes."""
        ids, own = pod.spec["securityContext"], pod.container["securityContext"]
        process = config["process"]
        process["args"] = [process["args"][0], *pod.args, *args]
        process["terminal"] = False
        process["user"] = {"uid": ids["runAsUser"], "gid": ids["runAsGroup"]}
        process["user"]["additionalGids"] = [ids["fsGroup"]]
        assert own["capabilities"] == {"drop": ["ALL"]}
        process["capabilities"] = {kind: [] for kind in CAPABILITIES}
        process["noNewPrivileges"] = not own["allowPrivilegeEscalation"]
        root = {"path": str(self.bundle / "rootfs"), "readonly": own["readOnlyRootFilesystem"]}
        mounts = [each for each in config["mounts"] if each["type"] != "cgroup"]
        for volume in pod.container["volumeMounts"]:
            place = {"destination": volume["mountPath"]}
            if volume["name"] == "secret":
                source = str(self.folder / "secrets")
                place |= {"type": "bind", "source": source, "options": ["bind", "ro"]}
            else:
                options = ["size=1m", f"uid={ids['runAsUser']}", f"gid={ids['fsGroup']}"]
                place |= {"type": "tmpfs", "source": "tmpfs", "options": options}
            mounts.append(place)
        spaces = [each for each in config["linux"]["namespaces"] if each["type"] != "network"]
        spaces.append({"type": "network", "path": str(netns.FOLDER / self.place(pod))})
        linux = config["linux"] | {"namespaces": spaces}
        return config | {"process": process, "root": root, "mounts": mounts, "linux": linux}

    def place(self, pod: Pod) -> str:
        return f"mrc-{self.folder.parent.name}-{pod.name}"

    def end(self) -> None:
        for name in self.names:
            subprocess.run(self.runc("delete", "--force", name), capture_output=True, check=False)
        for program in self.running:
            program.end()


@pytest.fixture
def runtime(bundle: Path, tmp_path: Path) -> Iterator[Runtime]:
    """With the two pods of `mrc perf`, joined in both planes."""
    runtime = Runtime(bundle, tmp_path / "run")
    pair = PODS["mrc-perf"], PODS["mrc-perf-client"]
    try:
        there, here = (runtime.place(pod) for pod in pair)
        for place in (there, here):
            netns.create(place)
        for one, other in zip(pair[0].networks, pair[1].networks, strict=True):
            join(there, one["interface"], here, other["interface"], mtu=9000)
            address(there, one["interface"], *one["ips"])
            address(here, other["interface"], *other["ips"])
            until_running(here, other["interface"])
        ip(f"-n {there} link set lo up")
        yield runtime
    finally:
        runtime.end()
        for pod in pair:
            netns.remove(runtime.place(pod))


def test_image__runs_perf_without_privilege(runtime: Runtime) -> None:
    server, client = PODS["mrc-perf"], PODS["mrc-perf-client"]
    secrets = runtime.folder / "secrets"
    secrets.mkdir()
    run(sys.executable, "-m", "mrc", "key", "--secret", secrets / "secret")
    group = server.spec["securityContext"]["fsGroup"]
    os.chown(secrets / "secret", 0, group)
    (secrets / "secret").chmod(0o440)
    runtime.start(server).until_listening()
    (result,) = printed("perf", runtime.start(client, "-t", "1").ends(0))["results"]
    sent = {each["plane"]: each["sent_bytes"] for each in result["client"]["planes"]}
    assert set(sent) == {1, 2} and all(sent.values())
