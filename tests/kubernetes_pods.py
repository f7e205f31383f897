# SPDX-License-Identifier: Apache-2.0
"""The manifests of mrc/examples/kubernetes, and the pods in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from project_text import ROOT

FOLDER = ROOT / "mrc" / "examples" / "kubernetes"
FILES = ("networks.yaml", "recv.yaml", "perf.yaml")
NETWORKS = "k8s.v1.cni.cncf.io/networks"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


@dataclass
class Pod:
    """A pod of one container."""

    name: str
    spec: dict[str, Any]
    networks: list[dict[str, Any]]
    """name, interface and addresses of each"""

    @property
    def container(self) -> dict[str, Any]:
        (found,) = self.spec["containers"]
        assert isinstance(found, dict)
        return found

    @property
    def args(self) -> list[str]:
        return list(self.container["args"])


def pods() -> Iterator[Pod]:
    for name in FILES:
        for document in documents(name):
            template = document.get("spec", {}).get("template")
            if template is not None:
                networks = json.loads(template["metadata"]["annotations"][NETWORKS])
                yield Pod(document["metadata"]["name"], template["spec"], networks)
