# SPDX-License-Identifier: Apache-2.0
"""The examples run and print the documented output; and the manifests of mrc/examples/kubernetes
against Kubernetes' schemas, its "restricted" pod security standard, and the options of mrc.
`netns/test_rootless.py` runs their commands.
"""

from __future__ import annotations

import json
import subprocess
import sys
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from kubernetes_pods import FILES, Pod, documents, pods
from kubernetes_pods import FOLDER as MANIFESTS
from slowness import PATIENCE

import mrc.examples
from mrc.cli.main import build_parser

FOLDER = Path(mrc.examples.__file__).parent
SHOWN = {
    "blocking_write": "hello without asyncio",
    "controller": "paths in use: 4\npaths in use: 4",
    "hello": "hello over MRC",
    "many_writes": "equal: True, ",
    "numpy_write": "equal: True, ",
    "sealed_write": "hello, sealed (AEAD)",
    "send_progress": "\nsent disk.img: 67108864 bytes\nstored as disk.img\n",
    "watch_paths": "state=<EvState.DENIED: 3>",
}


def run(*arguments: str) -> str:
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_examples__are_all_run() -> None:
    """`netns/test_library.py` runs those that are tests."""
    programs = {path.stem for path in FOLDER.glob("*.py") if not path.match("*_test.py")}
    assert programs == {*SHOWN, "__init__"}


@pytest.mark.parametrize("name", SHOWN)
def test_examples__run(name: str) -> None:
    assert SHOWN[name] in run("-m", f"mrc.examples.{name}")
    assert f"python -m mrc.examples.{name}" in (FOLDER / f"{name}.py").read_text()


def test_numpy_write__without_numpy() -> None:
    code = (
        "import runpy, sys; sys.modules['numpy'] = None;"
        "runpy.run_module('mrc.examples.numpy_write', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "numpy is not installed: pip install numpy\n")


def test_readme__shows_hello() -> None:
    hello = {line.strip() for line in (FOLDER / "hello.py").read_text().splitlines()}
    shown = (FOLDER / "README.md").read_text().split("```python\n")[1].split("```")[0]
    assert {line.strip() for line in shown.splitlines()} <= hello


# ---- Kubernetes ----------------------------------------------------------------------------------


OLDEST = "1.33"
PODS = {pod.name: pod for pod in pods()}
every_pod = pytest.mark.parametrize("pod", PODS.values(), ids=PODS)


def networks() -> dict[str, dict[str, Any]]:
    """Name -> its configuration for CNI."""
    every = documents("networks.yaml")
    return {each["metadata"]["name"]: json.loads(each["spec"]["config"]) for each in every}


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("name", FILES[1:])
def test_manifests__fit_the_schema(name: str, version: str) -> None:
    for document in documents(name):
        kubernetes_validate.validate(document, version, strict=True)


def test_manifests__are_all_listed() -> None:
    assert {path.name for path in MANIFESTS.glob("*.yaml")} == set(FILES)


def test_networks__are_those_of_multus() -> None:
    """Its schema: `spec.config` is a text with the configuration."""
    for document in documents("networks.yaml"):
        assert set(document) == {"apiVersion", "kind", "metadata", "spec"}
        assert document["apiVersion"] == "k8s.cni.cncf.io/v1"
        assert document["kind"] == "NetworkAttachmentDefinition"
        assert set(document["spec"]) == {"config"}
    for config in networks().values():
        assert (config["type"], config["ipam"]) == ("macvlan", {"type": "static"})
    assert len({config["master"] for config in networks().values()}) == 2


def test_pods__have_addresses_of_their_own_in_both_planes() -> None:
    found = [
        (each["name"], ip_interface(each["ips"][0])) for pod in pods() for each in pod.networks
    ]
    assert len({address.ip for _, address in found}) == len(found)
    planes = {name: {address.network for at, address in found if at == name} for name in networks()}
    assert all(len(each) == 1 for each in planes.values())
    assert {name for name, _ in found} == set(networks())


@every_pod
def test_pods__use_their_planes_only(pod: Pod) -> None:
    args = build_parser().parse_args(pod.args)
    assert args.interfaces == [each["interface"] for each in pod.networks] == ["net1", "net2"]


@every_pod
def test_pods__have_no_privilege(pod: Pod) -> None:
    """The "restricted" standard, and what it leaves open."""
    of_pod, own = pod.spec["securityContext"], pod.container["securityContext"]
    assert of_pod["runAsNonRoot"] and of_pod["runAsUser"] > 0 and of_pod["runAsGroup"] > 0
    assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(pod.spec)
    assert {kind for each in pod.spec["volumes"] for kind in each} <= {
        "name", "secret", "persistentVolumeClaim", "emptyDir",
    }  # fmt: skip
    assert pod.spec["automountServiceAccountToken"] is False


def test_client__measures_the_server() -> None:
    args = build_parser().parse_args(PODS["mrc-perf-client"].args)
    (address,) = PODS["mrc-perf"].networks[0]["ips"]
    assert args.host[0] == str(ip_interface(address).ip)
