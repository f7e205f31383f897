# SPDX-License-Identifier: Apache-2.0
"""Topologies for other tools: the commands of a node, and the files."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from subprocess import PIPE

import pytest
from msgspec.structs import replace
from printed import printed

from mrc.cli.main import main
from mrc.fabric.faults import LinkChange
from mrc.lab import export
from mrc.lab.export import containerlab, netns_script
from mrc.testbed.plan import census, make_plan
from mrc.testbed.shape import Fabric, Shape

SHAPE = Shape(hosts=4, planes=2, t0=2, t1=2)


def lines_of(shape: Shape, node: str) -> list[str]:
    plan = make_plan("lab", shape)
    return export.script(plan, plan.nodes[node]).splitlines()


def test_script__routes_of_each_kind() -> None:
    host, t0 = lines_of(SHAPE, "h0"), lines_of(SHAPE, "t0-2-1")
    assert {
        "route replace local fd00:a::/64 dev lo metric 1024 proto static",
        "route replace fcbb:2:e000::/48 encap seg6local action End.DT6 table 255 dev p2 metric 1024"
        " proto static",
        "route replace fd00:a:2::1:1/128 encap seg6 mode encap.red segs fcbb:1:101:201:e000::"
        " via fe80::1 dev p1 src fd00:a::1:0 metric 1024 proto static",
        "route append fd00:a:2::1/128 encap seg6 mode encap.red segs fcbb:1:101:201:e000::"
        " via fe80::1 dev p1 src fd00:a::1 metric 1024 proto static",
    } <= set(host)
    assert any(line.startswith("ip sr tunsrc set fd00:a::1 || ") for line in host)
    assert (
        "route replace fcbb:2:201::/48 encap seg6local action End flavors next-csid lblen 32"
        " nflen 16 dev h3 metric 1025 proto static"
    ) in t0
    routes = sum(line.startswith("route ") for line in host)
    assert routes == len(make_plan("lab", SHAPE).nodes["h0"].routes)


def test_script__queues_with_rate_with_delay_and_with_both() -> None:
    other = LinkChange("link:h1.1", delay_ns=1_000_000)
    shape = replace(SHAPE, host_rate_bps=8_000_000, fabric_rate_bps=None, links=(other,))
    rate = "qdisc replace dev h1 root handle 1: tbf rate 8000000bit burst 81920 limit 344064"
    delay = "netem delay 1000us limit 100000"
    found = [line for line in lines_of(shape, "t0-1-0") if line.startswith("qdisc")]
    assert found[1:] == [rate, f"qdisc replace dev h1 parent 1:1 handle 2: {delay}"]
    found = [
        line
        for line in lines_of(replace(shape, host_rate_bps=None), "h1")
        if line.startswith("qdisc")
    ]
    assert found == [f"qdisc replace dev p1 root handle 2: {delay}"]


def test_script__interfaces_that_are_there_before_it() -> None:
    """Their settings are not those of `default`, and their addresses not those of the plan."""
    lines = lines_of(SHAPE, "t1-1-1")
    assert "echo 1 > /proc/sys/net/ipv6/conf/t0-1/addr_gen_mode" in lines
    assert "link set dev t0-1 address 02:00:00:00:00:01 mtu 9000" in lines


REFUSING_IP = """\
#!/bin/sh
# As ip -batch: carries out lines up to one that it refuses, the second of the first two files.
count=0
while read -r line; do
    count=$((count + 1))
    if [ $count = 2 ] && [ ! -e "$HOME/refused-twice" ]; then
        [ ! -e "$HOME/refused" ] || touch "$HOME/refused-twice"
        touch "$HOME/refused"
        printf 'RTNETLINK answers: %s\\nCommand failed %s:2\\n' "$REASON" "$2" >&2
        exit 1
    fi
    echo "$line" >> "$HOME/taken"
done < "$2"
"""


@pytest.mark.parametrize(
    ("reason", "code"), [("Cannot allocate memory", 0), ("Operation not supported", 1)]
)
def test_script__repeats_routes_only_for_want_of_memory(
    reason: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "ip").write_text(REFUSING_IP)
    (tmp_path / "ip").chmod(0o755)
    lines = lines_of(SHAPE, "h0")
    begin = lines.index("add_routes() {")
    text = "\n".join(lines[begin : lines.index("END", begin) + 1])
    path = f"{tmp_path}:{os.environ['PATH']}"
    env = {"HOME": str(tmp_path), "PATH": path, "REASON": reason, "TMPDIR": str(tmp_path)}
    done = subprocess.run(["sh", "-e"], input=text, text=True, env=env, stderr=PIPE, check=False)
    routes = [line for line in lines if line.startswith("route ")]
    assert (tmp_path / "taken").read_text().splitlines() == (routes[:1] if code else routes)
    assert (done.returncode, reason in done.stderr) == (code, bool(code))


def test_netns_script__is_valid_bash() -> None:
    text = netns_script(make_plan("lab", SHAPE))
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert text.count("\nlink add name ") == census(SHAPE).links


def test_containerlab__has_a_node_for_each_host_and_switch() -> None:
    plan = make_plan("lab", SHAPE)
    files = containerlab(plan, "here/mrc:1")
    lines = files["lab.clab.yml"].splitlines()
    ends = [json.loads(line.partition(": ")[2]) for line in lines if "endpoints" in line]
    assert len(ends) == len(plan.links) and ["h3:p2", "t0-2-1:h3"] in ends
    heads = [line for line in lines if line.startswith("    ") and line[4] != " "]
    assert [line.strip(" :") for line in heads if line.endswith(":")] == list(plan.nodes)
    assert '    image: "here/mrc:1"' in lines
    assert set(files) == {
        "lab.clab.yml",
        *(f"{node}/set-up.sh" for node in plan.nodes),
        *(f"h{host}/{name}" for host in range(4) for name in ("host.toml", "hosts")),
    }


def test_export__writes_what_it_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lab.sh"
    words = ("testbed", "export", "--planes", "1", "--name", "try")
    assert main([*words, "--netns-script", str(path)]) == 0
    assert capsys.readouterr().out == f"wrote {path}; build it with: {path} up\n"
    assert path.stat().st_mode & 0o111 and "\nname=try\n" in path.read_text()
    assert main([*words, "--netns-script", "-"]) == 0
    assert capsys.readouterr().out == path.read_text()
    assert main([*words, "--containerlab", str(tmp_path / "clab"), "--json"]) == 0
    told = printed("testbed export", capsys.readouterr().out)
    assert (told["name"], told["nodes"]) == ("try", 7)
    assert told["files"][0] == str(tmp_path / "clab" / "try.clab.yml")
    assert all(Path(file).is_file() for file in told["files"])


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        ((), 2, "one of the arguments --netns-script --containerlab --switches is required"),
        (("--netns-script", "-", "--fabric", "emulated"), 2, "only mrc can run an emulated fabric"),
        (("--netns-script", "-", "--json"), 2, "excludes --json"),
        (("--netns-script", "/proc/no/lab.sh"), 1, "/proc/no/lab.sh: "),
        (("--containerlab", "/proc/no"), 1, "/proc/no/lab.clab.yml: "),
        (("--containerlab", "lab", "--image", "a b"), 2, "'a b' is not the name of a container"),
    ],
)
def test_export__wrong_use_is_one_line(
    words: tuple[str, ...], code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["testbed", "export", *words]) == code
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1


def test_export__needs_a_kernel_fabric() -> None:
    plan = make_plan("lab", replace(SHAPE, fabric=Fabric.EMULATED))
    with pytest.raises(ValueError, match="only mrc can run"):
        containerlab(plan, "mrc")


@pytest.mark.parametrize("name", ["wrong.toml", "missing.toml"])
def test_export__of_a_bad_file_is_wrong_use(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.toml").write_text("hosts = \n")
    path = str(tmp_path / name)
    assert main(["testbed", "export", "--netns-script", "-", path]) == 2
    error = capsys.readouterr().err
    assert (path in error, error.count("\n")) == (True, 1)
