# SPDX-License-Identifier: Apache-2.0
"""Scenarios run end to end: the simulator from Python, its checks, and `mrc sim`; the built-in
scenarios meet their checks.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from printed import printed

from mrc.cli.main import main
from mrc.sim import checks, native
from mrc.sim import scenario as scenarios
from mrc.sim.checks import Measured, evaluate
from mrc.sim.results import Value
from mrc.sim.run import Curve, run
from mrc.sim.scenario import Scenario, load_scenario, scenario_names
from mrc.sim.trials import run_trial, summarize

QUICK = ("t2-silent", "three-tiers")
"""Scenarios that the default tests run: all others have two tiers."""

SMALL = {"title": "small", "topology": {"hosts": 8, "planes": 2, "t0": 2, "t1": 4}}


def make(*traffic: dict[str, Any], **tables: Any) -> Scenario:
    return scenarios.parse_scenario(
        SMALL | {"traffic": list(traffic)} | tables, "small", "small.toml"
    )


def by_name(scenario: Scenario, seed: int = 1) -> dict[str, Value]:
    return {o.name: o for o in evaluate(scenario, [summarize(run_trial(scenario, seed)).measured])}


@pytest.mark.parametrize("kind", ["permutation", "incast", "checkpoint", "all-to-all", "ring"])
def test_run__every_kind_of_traffic_completes(kind: str) -> None:
    traffic = {"kind": kind, "write": "128KiB"} | ({"to": [1, 5]} if kind == "checkpoint" else {})
    result = run(make(traffic), seed=1)
    for flow, info in zip(result.flows, result.infos, strict=True):
        assert (info.completed, info.failed) == (flow.writes, 0)
        assert info.received_bytes == flow.writes * 128 * 1024
        assert info.spurious_packets == info.repeated_packets == 0
    assert result.stats.lost == result.stats.dropped == result.stats.unroutable == 0
    assert len(result.messages) == result.stats.completed_writes


@pytest.mark.parametrize("kind", ["ring", "all-to-all"])
def test_run__a_step_begins_when_all_have_ended_the_last_and_have_computed(kind: str) -> None:
    traffic = {"kind": kind, "write": "64KiB", "group_size": 4, "qps": 2}
    result = run(make(traffic | {"steps": 3, "compute": "30us"}), seed=1)
    assert result.stats.completed_writes == sum(flow.writes for flow in result.flows)
    size = result.flows[0].step_writes
    steps: list[list[native.WriteRecord]] = [[], [], []]
    for i in range(len(result.flows)):
        mine = [message for message in result.messages if message.flow == i]
        for n, message in enumerate(mine):
            steps[n // size].append(message)
    ends = [0, *(max(message.done_ns for message in step) for step in steps)]
    assert [min(m.wanted_ns for m in step) for step in steps] == [end + 30_000 for end in ends[:3]]


def test_run__auditors_look_at_every_event() -> None:
    scenario = make(
        {"kind": "permutation", "write": "256KiB", "writes": 4},
        run={"audit": True},
        transport={"ev_active_per_plane": 2},
        faults=[{"target": "t1:1.0", "kind": "silent", "at": "5us", "until": "100us"}],
    )
    result = run(scenario, seed=1)
    assert result.stats.completed_writes == 32
    assert any(event.type == native.EngineEvent.EV_STATE for event in result.events)


def test_run__open_loop_measures_from_when_a_write_was_wanted() -> None:
    traffic = {"kind": "pairs", "pairs": [[0, 4]], "write": "64KiB", "interval": "20us"}
    result = run(make(traffic | {"writes": 200}), seed=1)
    times = [message.done_ns - message.wanted_ns for message in result.messages]
    assert len(times) == 200
    assert min(times) > result.scenario.base_rtt_ns
    span_ns = result.messages[-1].wanted_ns - result.messages[0].wanted_ns
    assert 3_000_000 < span_ns < 5_000_000


def test_run__same_seed_same_result(tmp_path: Path) -> None:
    scenario = make(
        {"kind": "permutation", "write": "256KiB"},
        faults=[{"target": "all", "kind": "loss", "share": "1%"}],
    )
    traces = [tmp_path / "a", tmp_path / "b"]
    first, second = (run(scenario, seed=5, trace=str(trace)) for trace in traces)
    assert first == second == run(scenario, seed=5)
    assert traces[0].read_bytes() == traces[1].read_bytes()
    assert traces[0].read_text().startswith("0 send h0>t0:1.0 op=c6 qp=")
    assert run(scenario, seed=6).stats.trace != first.stats.trace


def test_run__ecmp_puts_flows_on_the_same_uplinks() -> None:
    """With one path per plane, chosen by hash, flows collide; sprayed flows do not."""
    traffic = {"kind": "pairs", "pairs": [[0, 4], [1, 5], [2, 6], [3, 7]], "write": "4MiB"}
    sprayed = run(make(traffic), seed=1)
    topology = SMALL["topology"] | {"routing": "ecmp"}  # type: ignore[operator]
    hashed = run(make(traffic, topology=topology, transport={"evs_per_plane": 1}), seed=1)
    assert sprayed.goodput_bps(0) > 150e9
    slowest = min(hashed.goodput_bps(i) for i in range(4))
    assert slowest < 0.7 * min(sprayed.goodput_bps(i) for i in range(4))


def test_reference_of__leaves_out_faults_and_other_traffic() -> None:
    scenario = scenarios.load_scenario("incast-victim")
    assert [traffic.group for traffic in scenario.as_reference().traffic] == ["victim"]
    assert scenarios.load_scenario("lossy-ev").as_reference().faults == ()


def test_completion__percentiles_of_what_was_wanted_in_time() -> None:
    traffic = {"kind": "pairs", "pairs": [[0, 4]], "write": "64KiB", "depth": 1, "writes": 100}
    slow = {"target": "link:h0.1", "kind": "rate", "rate": "10%", "at": "500us"}
    check = {"measure": "completion", "of": "reference", "at_most": 9}
    scenario = make(
        traffic,
        faults=[slow],
        checks=[
            {"name": "rtts", "measure": "completion", "to": "400us", "at_most": 9},
            {"name": "p50", "percentile": 50, "to": "400us"} | check,
            {"name": "p99", "percentile": 99} | check,
            {"name": "never", "from": "90ms"} | check,
        ],
    )
    trial = run_trial(scenario, seed=1)
    found = dict(zip([check.name for check in scenario.checks], checks.values_of(
        scenario, trial.result, trial.reference), strict=True))  # fmt: skip
    times = [m.done_ns - m.wanted_ns for m in trial.result.messages]
    early = sorted(t for m, t in zip(trial.result.messages, times, strict=True)
                   if m.wanted_ns < 400_000)  # fmt: skip
    assert found["rtts"] == early[(len(early) + 1) // 2 - 1] / scenario.base_rtt_ns
    assert found["p50"] == 1
    assert found["p99"] is not None and found["p99"] > 1.2
    assert found["never"] is None


@pytest.mark.parametrize("transport", ["mrc", "go-back-n"])
def test_planes__are_told_apart(transport: str) -> None:
    silent = {"target": "plane:2", "kind": "silent", "at": "200us"}
    check = {"measure": "goodput", "of": "max-min", "to": "200us", "at_least": 0}
    scenario = make(
        {"kind": "pairs", "pairs": [[0, 4]], "write": "1MiB", "writes": 20},
        transport={"kind": transport},
        faults=[silent],
        run={"until": "1ms"},
        checks=[
            check | {"name": "one", "plane": 1},
            check | {"name": "two", "plane": 2},
            check | {"name": "both"},
            {"name": "least", "measure": "least_plane", "to": "200us", "at_least": 0},
            {"name": "late", "plane": 2, "from": "300us", "measure": "goodput", "at_least": 0},
        ],
    )
    found = {name: outcome.value or 0 for name, outcome in by_name(scenario).items()}
    assert (found["one"] + found["two"]) / 2 == pytest.approx(found["both"])
    assert found["late"] == 0
    if transport == "mrc":
        assert found["least"] > 0.95
        assert min(found["one"], found["two"]) > 0.8
    else:
        assert found["least"] == 0


def test_max_min__is_what_a_slow_plane_leaves() -> None:
    """A single plane with alternating rates, without congestion control: tests only the measure."""
    topology = {"hosts": 2, "planes": 1, "t0": 1, "t1": 1, "host_rate": "100Mbit/s"}
    scenario = make(
        {"kind": "pairs", "pairs": [[0, 1]], "write": "1MiB", "writes": 100},
        topology=topology | {"fabric_rate": "100Mbit/s"},
        transport={"cc": "null", "mpr": 128, "noise": "1ms"},
        faults=[{"target": "plane:1", "kind": "rate", "rate": "20%", "at": "100ms",
                 "every": "200ms", "for": "100ms"}],
        run={"until": "1s", "sample": "1ms"},
        checks=[{"measure": "goodput", "of": "max-min", "from": "50ms", "at_least": "95%"}],
    )  # fmt: skip
    [outcome] = by_name(scenario).values()
    assert outcome.value is not None and 0.97 < outcome.value < 1.03


def test_incast__marks_on_the_last_hop_spare_retransmissions() -> None:
    """Eight to one into a buffer of one bandwidth-delay product, with the marks that NSCC expects.

    uet-htsim, which has these marks too, retransmits 3.6%.
    """
    scenario = make(
        {"kind": "pairs", "pairs": [[sender, 0] for sender in range(8, 16)], "write": "4MiB"},
        topology={
            "hosts": 16, "planes": 1, "t0": 2, "t1": 8, "host_delay": "1us", "fabric_delay": "1us",
            "wake": "0ns", "buffer": "123714B", "ecn_low": "25596B", "ecn_high": "102384B",
            "ecn_last_hop": True,
        },
        checks=[
            {"measure": "retransmitted", "at_most": "5%"},
            {"measure": "slowest_flow", "at_least": 0.9 / 8},
        ],
    )  # fmt: skip
    assert all(outcome.met for outcome in by_name(scenario).values())


def test_lossy_ev__is_left_at_once() -> None:
    for part in scenarios.load_scenario("lossy-ev", {"traffic.0.writes": 4}).parts:
        outcomes = by_name(part)
        assert outcomes[f"writes completed, {part.variant}"].met
        [bad] = [outcome for name, outcome in outcomes.items() if "ASSUMED_BAD" in name]
        assert bad.met and bad.value is not None and 0 < bad.value < 3


def test_both_ways__full_ports_do_not_hold_up_sacks() -> None:
    """Otherwise each host waits for the other's SACKs, and the directions take turns."""
    for part in scenarios.load_scenario("both-ways").parts:
        assert all(outcome.met for outcome in by_name(part).values()), part.variant


def test_loss_of_control__completes() -> None:
    for part in scenarios.load_scenario("loss-of-control", {"traffic.0.writes": 16}).parts:
        result = run(part, seed=1)
        assert result.stats.lost > 0
        assert result.infos[0].completed == 16, part.variant


def test_evaluate__what_never_happened_is_not_met() -> None:
    scenario = scenarios.load_scenario(
        "lossy-ev", {"traffic.0.writes": 1, "faults": [], "variants": []}
    )
    [bad] = [o for name, o in by_name(scenario).items() if "ASSUMED_BAD" in name]
    assert (bad.value, bad.met) == (None, False)


def test_evaluate__median_and_quartiles_of_the_seeds() -> None:
    scenario = make(
        {"kind": "pairs", "pairs": [[0, 4]], "write": "64KiB"},
        checks=[{"measure": "spurious", "at_most": 5}],
        baselines=["ecmp"],
    )
    found = [9, 0, 4, None, 2]
    [outcome] = evaluate(scenario, [Measured(1, (v,), {"ecmp": (1.0,)}) for v in found])
    assert (outcome.low, outcome.value, outcome.high) == (2, 4, 9)
    assert (outcome.relation, outcome.target, outcome.met) == ("<=", 5, True)
    assert outcome.baselines == {"ecmp": 1.0}


def test_baselines__run_beside_on_one_path() -> None:
    scenario = make({"kind": "permutation", "write": "1MiB"}, baselines=["ecmp", "go-back-n"])
    trial = run_trial(scenario, seed=1)
    sprayed, *others = (max(result.goodput_bps(i) for i in range(8)) for result in trial.results)
    assert sprayed > 150e9  # two planes
    assert all(60e9 < fastest < 100e9 for fastest in others)  # one of them
    for result in trial.results:
        assert result.stats.completed_writes == 8


def test_baselines__go_back_n_suffers_from_loss_where_mrc_does_not() -> None:
    scenario = make(
        {"kind": "pairs", "pairs": [[0, 4]], "write": "1MiB", "writes": 32},
        faults=[{"target": "all", "kind": "loss", "share": "1%"}],
        checks=[{"measure": "goodput", "of": "reference", "at_least": "90%"}],
        baselines=["go-back-n"],
        transport={"timeout": 5},
    )
    trials = [summarize(run_trial(scenario, seed)).measured for seed in range(1, 6)]
    [outcome] = evaluate(scenario, trials)
    assert outcome.met
    beside = outcome.baselines["go-back-n"]
    assert beside is not None and 0.05 < beside < 0.8


def test_baseline_of__leaves_all_else() -> None:
    scenario = scenarios.load_scenario("permutation")
    baseline = scenario.as_baseline("ecmp")
    assert baseline.transport.kind == "ecmp"
    assert (baseline.topology, baseline.traffic) == (scenario.topology, scenario.traffic)


def test_curve__between_samples() -> None:
    curve = Curve((10, 20), (100, 300))
    assert [curve.at(now_ns) for now_ns in (0, 5, 10, 15, 20, 99)] == [0, 50, 100, 200, 300, 300]


@pytest.mark.more
def test_command__details_of_many_flows_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    flows = ["traffic.0.qps=256", "traffic.0.pairs=[[0, 1], [0, 1], [0, 1], [0, 1], [0, 1]]"]
    small = ["traffic.0.write=1B", "traffic.0.writes=1", "variants=[]", "faults=[]", "checks=[]"]
    settings = [word for each in [*flows, *small] for word in ("--set", each)]
    main(["sim", "lossy-ev", *settings, "--json"])
    [brief] = printed("sim run", capsys.readouterr().out)["runs"]
    main(["sim", "lossy-ev", *settings, "--json", "--details"])
    [full] = printed("sim run", capsys.readouterr().out)["runs"]
    assert len(full["flows"]) == 1280 and len(full["last_hops"]) == 4
    assert brief == full | {"flows": [], "ev_events": [], "last_hops": []}


def test_command__json(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "variants=[]", "--set", "traffic.0.writes=4"]
    code = main(["sim", "lossy-ev", *settings, "--json"])
    found = printed("sim run", capsys.readouterr().out)
    assert found["scenario"]["name"] == "lossy-ev"
    assert set(found["checks"][0]) == {
        "scenario", "name", "value", "relation", "target", "met", "low", "high", "baselines",
    }  # fmt: skip
    assert code == (0 if all(check["met"] for check in found["checks"]) else 1)
    [result] = found["runs"]
    assert result["flows"][0]["received_bytes"] == 4 << 24
    assert result["flows"][0]["samples"]["received_bytes"][-1] == 4 << 24
    assert {(event["event"], event["plane"], event["path"]) for event in result["ev_events"]} == {
        ("ASSUMED_BAD", 1, 0),
        ("GOOD", 1, 0),  # until it loses again
    }


def test_command__text(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "variants=[]", "--set", "traffic.0.writes=8", "--seeds", "2"]
    code = main(["sim", "loss-of-control", *settings])
    text = capsys.readouterr().out
    assert "the first run, seed 1: " in text
    assert re.search(r"^check +median +quartiles +target +met$", text, re.MULTILINE)
    assert re.search(r"^writes completed +1 +1 to 1 +>= 1 +yes$", text, re.MULTILINE)
    assert code == (1 if " NO\n" in text else 0)


def test_command__a_missed_target_says_over_how_many_seeds_it_is_meant(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sim", "loss-of-control", "--set", "run.until=10us"]) == 1
    assert "targets are for the median of 20 seeds: see --seeds 20" in capsys.readouterr().err


@pytest.mark.slow
def test_command__csv(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "run.until=2ms", "--set", "baselines=['go-back-n']", "--seeds", "2"]
    main(["sim", "uniform-loss-1", *settings, "--csv"])
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    checks = scenarios.load_scenario("uniform-loss-1").parts[0].checks
    assert len(rows) == 5 * 2 * 2 * len(checks)  # variants, seeds, transports
    first, *_ = (row for row in rows if row["check"] == "goodput, of the loss-free run")
    assert [first[key] for key in ("scenario", "variant", "seed", "transport", "target")] == [
        "uniform-loss-1", "64 KiB", "1", "mrc", "",
    ]  # fmt: skip
    assert 0 < float(first["value"]) <= 1.1
    assert {row["transport"] for row in rows} == {"mrc", "go-back-n"}


@pytest.mark.more
def test_command__variants_and_baselines(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "run.until=2ms", "--set", "baselines=['go-back-n']"]
    main(["sim", "uniform-loss-1", *settings, "--seeds", "2", "--json"])
    found = printed("sim run", capsys.readouterr().out)
    names = ["64 KiB", "1 MiB", "16 MiB", "64 MiB", "1 MiB, cc delay"]
    assert found["scenario"]["variants"] == names
    assert [value["name"] for value in found["values"]] == ["goodput, of the loss-free run, 64 KiB"]
    assert "goodput, of the loss-free run, 1 MiB" in {check["name"] for check in found["checks"]}
    runs = [(run["variant"], run["seed"], run["transport"]) for run in found["runs"]]
    assert runs[:4] == [
        ("64 KiB", 1, "mrc"),
        ("64 KiB", 1, "go-back-n"),
        ("64 KiB", 2, "mrc"),
        ("64 KiB", 2, "go-back-n"),
    ]
    assert len(runs) == 20


def test_command__a_variant_that_cannot_run_costs_only_its_rows(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "two.toml"
    path.write_text(
        'title = "t"\n[topology]\nhosts = 4\nplanes = 2\nt1 = 2\n'
        '[[traffic]]\nkind = "permutation"\nwrite = "4KiB"\n[[checks]]\nmeasure = "completed"\n'
        '[[variants]]\nname = "good"\n'
        '[[variants]]\nname = "late"\nset = {"topology.wake" = "10s"}\n'
    )
    assert main(["sim", str(path), "--json"]) == 1
    told = capsys.readouterr()
    found = printed("sim run", told.out)
    assert [run["variant"] for run in found["runs"]] == ["good"]
    assert [(check["name"], check["value"], check["met"]) for check in found["checks"]] == [
        ("writes completed, good", 1, True),
        ("writes completed, late", None, False),
    ]
    assert [(each["variant"], each["seed"]) for each in found["lost"]] == [("late", 1)]
    assert "two, late, seed 1: no result: congestion control does not work" in told.err


@pytest.mark.more
def test_command__plot(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "goodput.svg"
    main(["sim", "loss-of-control", "--set", "traffic.0.writes=8", "--plot", str(path)])
    assert path.read_text().startswith("<svg ")


@pytest.mark.more
def test_command__report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrc.sim.cli.scenario_names", lambda: ["loss-of-control", "lossy-ev"])
    path = tmp_path / "report.html"
    settings = ["--set", "variants=[]", "--set", "traffic.0.writes=2", "--seeds", "2"]
    assert main(["sim", "report", "--output", str(path), "--json", *settings]) == 0
    found = printed("sim report", capsys.readouterr().out)
    assert {check["scenario"] for check in found["checks"]} == {"loss-of-control", "lossy-ev"}
    assert path.read_text().count("<svg ") == 2


@pytest.mark.more
def test_command__report_of_the_paper(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["cold-start", "loss-of-control", "lossy-ev"]
    monkeypatch.setattr("mrc.sim.cli.scenario_names", lambda: names)
    path = tmp_path / "paper.html"
    settings = ["--set", "variants=[]", "--set", "traffic.0.writes=2", "--seeds", "2"]
    main(["sim", "report", "--paper", "--output", str(path), "--json", *settings])
    found = printed("sim report", capsys.readouterr().out)
    first, second = found["figures"]
    assert (first["scenario"], first["figure"]) == ("cold-start", "Fig. 4")
    assert second["claim"] == scenarios.load_scenario("lossy-ev").claim
    assert first["met"] == all(c["met"] for c in found["checks"] if c["scenario"] == "cold-start")
    assert first["seconds"] > 0
    text = path.read_text()
    assert text.count("<svg ") == 2 and "loss-of-control" not in text
    assert "fewer than 5 lost packets" in text and "Fig. 12-13" in text


def test_command__report_leaves_out_slow_scenarios(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrc.sim.cli.scenario_names", lambda: ["lossy-ev"])
    arguments = ["--output", str(tmp_path / "report.html"), "--json", "--seeds", "1"]
    assert main(["sim", "report", *arguments, "--set", "slow=true"]) == 0
    assert printed("sim report", capsys.readouterr().out)["checks"] == []


def test_command__list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "list"]) == 0
    assert "permutation        each of 64 hosts" in capsys.readouterr().out
    assert main(["sim", "list", "--json"]) == 0
    listed = printed("sim list", capsys.readouterr().out)["scenarios"]
    assert [scenario["name"] for scenario in listed] == scenarios.scenario_names()


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["nowhere"], "no scenario 'nowhere'"),
        (["lossy-ev", "--set", "run"], "'run' is not KEY=VALUE"),
        (["cold-start", "--set", "run.until=soon"], "cold-start: run.until: 'soon' is not a time"),
        (
            ["lossy-ev", "--seeds", "2", "--trace", "x"],
            "--trace: requires a single seed; drop --seeds",
        ),
        (
            ["uniform-loss-1", "--trace", "x"],
            "--trace: requires a single variant; add --set variants=[]",
        ),
        (["lossy-ev", "--output", "x"], "unrecognized arguments: --output"),
        (["report"], "--output"),
        (["lossy-ev", "--seed", "-1"], "--seed"),
    ],
)
def test_command__wrong_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str], cause: str
) -> None:
    assert main(["sim", *arguments]) == 2
    assert cause in capsys.readouterr().err


@pytest.mark.more
@pytest.mark.parametrize("name", QUICK)
def test_built_in__meets_its_targets_with_the_default_seed(name: str) -> None:
    assert main(["sim", name, "--quiet"]) == 0


# ---- Built-in scenarios --------------------------------------------------------------------------


ONE_SEED = {"small-writes": 1, "uplinks-flap": 1, "uplinks-down": 2}
"""The seed with which the default tests run a scenario."""


def meets(name: str, seeds: range, settings: Mapping[str, Any] | None = None) -> None:
    parts = load_scenario(name, settings or {}).parts
    for scenario in parts:
        runs = [summarize(run_trial(scenario, seed)).measured for seed in seeds]
        missed = [o for o in evaluate(scenario, runs) if o.met is False]
        assert not missed, [(o.name, o.value, o.relation, o.target) for o in missed]


@pytest.mark.parametrize("name", ONE_SEED)
def test_planes__carry_what_they_can(name: str) -> None:
    meets(name, range(ONE_SEED[name], ONE_SEED[name] + 1))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "name", [name for name in scenario_names() if not load_scenario(name).slow]
)
def test_built_in__meets_its_targets_with_other_seeds(name: str) -> None:
    meets(name, range(1, 6))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shares", ["measured", "equal"])
@pytest.mark.parametrize("name", ["permutation", "all-to-all"])
@pytest.mark.parametrize("first", range(1, 21, 4))
def test_full_fabrics__meet_their_checks_at_every_seed(first: int, name: str, shares: str) -> None:
    for seed in range(first, first + 4):
        meets(name, range(seed, seed + 1), {"transport.plane_shares": shares})


def goodputs_of_connects(n: int) -> list[float]:
    """Goodputs of n QPs, one after the other, between hosts that run up to 2 ms late."""
    scenario = load_scenario(
        "long-way",
        {
            "topology.wake_noise": "2ms",
            "run.until": "1500ms",
            "variants": [],
            "checks.0.from": "500ms",
        },
    )
    values = []
    for seed in range(1, n + 1):
        value = checks.goodput_bps(scenario.checks[0], run(scenario, seed))
        assert value is not None
        values.append(value)
    return values


def worst_of_median(values: list[float]) -> float:
    return min(values) / median(values)


@pytest.mark.slow
def test_connects__none_is_left_behind() -> None:
    """If noise makes the base RTT too small, the QP is not slow for its whole life."""
    assert worst_of_median(goodputs_of_connects(20)) >= 0.7


@pytest.mark.slow
def test_connects__none_of_200_is_left_behind() -> None:
    assert worst_of_median(goodputs_of_connects(200)) >= 0.7
