"""A real Prometheus watches real servers under load: what dashboards and rules ask for is there.

On a machine without a GPU there are no graphs, and nobody takes nodes away: of those figures the value is a stated 0.
What graphs would make of the panels is seen on the page of a pod that is told so.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.observability import expressions, graphs
from tests.observability.conftest import OF_GRAPHS, VARIABLES, Run
from tests.observability.plot import contact_sheet
from tests.observability.prometheus import Series

PANELS = expressions.of_dashboards()
RULES = expressions.of_rules()
RECORDED = {rule["record"] for rule in expressions.rules() if "record" in rule}
GIVEN_BY_SCRAPING = {"namespace", "pod"}  # labels of a PodMonitor's targets
MADE_BY_PROMETHEUS = {"le"}
# vLLM's names are what autoscalers ask for, and a colon in them is vLLM's choice.
NOT_OURS_TO_NAME = re.compile(r"^vllm:\S+ metric names should not contain ':'$")


def look(run: Run, expression: expressions.Expression) -> list[Series]:
    text = expression.filled(VARIABLES)
    if expression.instant:
        return run.prometheus.now(text, run.end_s)
    return run.prometheus.over(text, run.begin_s, run.end_s)


def exported(page: str) -> dict[str, dict[str, set[str]]]:
    """Sample name -> label -> values."""
    found: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


def test_the_readers_had_turns_of_every_kind(run: Run) -> None:
    assert run.seen.ends["length"] or run.seen.ends["stop"]
    assert run.seen.ends["left"] >= 1
    # On a busy machine the time may be over before the first token, or be seen to be too short.
    assert run.seen.ends["deadline"] + sum(run.seen.refused[why] for why in run.seen.refused if "DEADLINE" in why) == 1
    assert run.seen.refused["QUEUE_FULL"] >= 1
    assert run.seen.refused["INVALID_FIELD"] >= 1
    assert run.seen.resumed["draining"] == 1


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.where)
def test_met_04_every_panel_has_data_or_a_stated_0(run: Run, panel: expressions.Expression) -> None:
    if panel.where.endswith("mark Node taken away"):  # nothing to mark, as everywhere without a cluster
        panel = expressions.Expression(panel.where, expressions.compared(panel.filled(VARIABLES))[0], instant=False)
    series = look(run, panel)

    values = [value for found in series for value in found.values if not math.isnan(value)]
    assert values, f"no data: {panel.filled(VARIABLES)}"
    assert all(0 <= value < math.inf for value in values)


@pytest.mark.parametrize("panel", [panel for panel in PANELS if panel.legend], ids=lambda panel: panel.where)
def test_met_04_every_legend_names_labels_that_the_series_have(run: Run, panel: expressions.Expression) -> None:
    wanted = set(re.findall(r"{{(\w+)}}", panel.legend))

    for series in look(run, panel):
        assert wanted <= set(series.labels)


@pytest.mark.parametrize(("chosen", "label"), expressions.choosers(), ids=lambda part: getattr(part, "where", part))
def test_met_04_every_chooser_lists_something(run: Run, chosen: expressions.Expression, label: str) -> None:
    assert run.prometheus.label_values(chosen.filled(VARIABLES), label)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.where)
def test_every_rule_compares_something_that_is_there(run: Run, rule: expressions.Expression) -> None:
    for part in expressions.compared(rule.text) or [rule.text]:
        series = run.prometheus.now(part, run.end_s)
        assert series, f"no data: {part}"
        assert any(math.isfinite(value) for found in series for value in found.values)  # NaN: of a pod without turns


def test_prometheus_evaluates_the_rules_without_an_error(run: Run) -> None:
    for group in run.prometheus.rule_groups():
        for rule in group["rules"]:
            assert rule["health"] == "ok", f"{rule['name']}: {rule.get('lastError')}"
    for name in RECORDED:
        assert run.prometheus.now(name, run.end_s), name


def test_a_healthy_run_fires_nothing_but_what_the_load_provokes(run: Run) -> None:
    firing = {series.labels["alertname"] for series in run.prometheus.now('ALERTS{alertstate="firing"}', run.end_s)}

    assert not firing  # refusals, the only thing that goes wrong here, must last longer


def test_met_04_every_name_and_label_exists_on_the_page_after_some_requests(run: Run) -> None:
    page = exported(run.page)
    for expression in (*PANELS, *(chooser for chooser, _ in expressions.choosers()), *RULES):
        text = expression.filled(VARIABLES)
        for selector in expressions.selectors(text):
            if selector.name in RECORDED:
                continue
            assert selector.name in page, f"{expression.where}: {selector.name} is not exported"
            labels = page[selector.name]
            for matcher in selector.matchers.matchers:
                if matcher.name in GIVEN_BY_SCRAPING:
                    continue
                assert matcher.name in labels, f"{expression.where}: {selector.name} has no label {matcher.name}"
                if str(matcher.op) in ("MatchOp.Re", "MatchOp.NotRe") and matcher.name != "model":
                    missing = set(matcher.value.split("|")) - labels[matcher.name]
                    assert not missing, f"{expression.where}: {selector.name} has no {matcher.name} {missing}"
                elif matcher.name != "model":
                    assert matcher.value in labels[matcher.name], f"{expression.where}: {matcher.name}={matcher.value}"
        every_label = {label for labels in page.values() for label in labels}
        unknown = expressions.grouped_labels(text) - every_label - GIVEN_BY_SCRAPING - MADE_BY_PROMETHEUS
        assert not unknown, f"{expression.where}: no metric has the labels {unknown}"


def test_every_name_that_needs_no_model_is_there_before_the_model_is(run: Run) -> None:
    early, late = exported(run.first_page), exported(run.page)
    of_a_model = {"model_name", "gen_ai_request_model", "fingerprint"}

    for name, labels in late.items():
        if not of_a_model & set(labels):
            assert name in early, name
            assert early[name] == labels, f"{name} had other series before the first request"


def test_no_label_holds_more_than_a_bounded_set(run: Run) -> None:
    for name, labels in exported(run.page).items():
        for label, values in labels.items():
            assert len(values) <= 128, f"{name}{{{label}}}"


def test_promtool_finds_nothing_wrong_with_the_page(run: Run, require_tool: Callable[[str], str]) -> None:
    command = [require_tool("promtool"), "check", "metrics"]
    checked = subprocess.run(command, check=False, input=run.page, capture_output=True, text=True, timeout=20)
    said = (checked.stdout + checked.stderr).splitlines()

    assert [line for line in said if not NOT_OURS_TO_NAME.match(line)] == []


@pytest.mark.parametrize(
    "histogram",
    [
        "gen_ai_server_time_to_first_token_seconds",
        "gen_ai_server_request_duration_seconds",
        "gen_ai_server_time_per_output_token_seconds",
        "soloist_inter_token_seconds",
        "soloist_queue_seconds",
    ],
)
def test_met_03_what_was_observed_lies_inside_the_buckets(run: Run, histogram: str) -> None:
    counts: dict[float, float] = {}
    for family in text_string_to_metric_families(run.page):
        for sample in family.samples:
            if sample.name == f"{histogram}_bucket":
                counts[float(sample.labels["le"])] = counts.get(float(sample.labels["le"]), 0) + sample.value
    bounds = sorted(counts)
    observed = counts[math.inf]
    within = next(at for at, bound in enumerate(bounds) if counts[bound] >= 0.99 * observed)

    assert observed > 0
    assert observed - counts[bounds[-2]] < 0.01 * observed  # in +Inf
    assert 0 < within < len(bounds) - 2  # neither the first bucket nor the last finite one
    assert bounds[within] / bounds[within - 1] <= 2.5  # and it says something of where in it


def of_graphs(run: Run, title: str) -> list[Series]:
    [panel] = [panel for panel in PANELS if panel.where == f"what-the-gpu-does: {title} A"]
    text = panel.filled(OF_GRAPHS)
    return run.prometheus.now(text, run.end_s)


def test_with_graphs_one_glance_tells_what_share_of_the_tokens_were_replays_and_why_not_all(run: Run) -> None:
    [share] = of_graphs(run, "Is every token a replay?")
    [reason] = of_graphs(run, "Largest reason why not")

    assert share.values == [pytest.approx(0.99, abs=0.004)]
    assert reason.labels == {"reason": "unsupported_request"}
    assert {series.labels["graph"] for series in of_graphs(run, "Replays by graph")} >= set(graphs.GRAPHS)
    eager = run.prometheus.now('rate(soloist_eager_steps_total{pod="replays", reason="unsupported_request"}[1m])')
    assert eager[0].values[0] > 0


def test_with_graphs_the_share_of_bandwidth_is_what_the_steps_reach(run: Run) -> None:
    [share] = of_graphs(run, "Share of memory bandwidth")
    [read] = of_graphs(run, "Weights read a second")
    mean_step_s = 0.99 * graphs.STEP_S + 0.01 * 3 * graphs.STEP_S
    read_by_hand = 13.21e9 / mean_step_s  # 6.6 billion numbers of two bytes, the embedding left out

    assert read.values == [pytest.approx(read_by_hand, rel=0.03)]
    assert share.values == [pytest.approx(read_by_hand / 4.8e12, rel=0.03)]


def test_with_graphs_captures_and_their_pool_are_shown(run: Run) -> None:
    assert [series.values for series in of_graphs(run, "Graphs, fewest")] == [[len(graphs.GRAPHS)]]
    assert [series.values for series in of_graphs(run, "Memory of the graphs' pool")] == [[graphs.POOL_BYTES]]
    spent = {series.labels["cause"]: series.values[0] for series in of_graphs(run, "Time of a capture")}
    assert spent == {"start": pytest.approx(graphs.CAPTURE_S), "weights_changed": 0}


@pytest.mark.slow
@pytest.mark.parametrize("path", expressions.DASHBOARDS, ids=lambda path: path.stem)
def test_a_contact_sheet_can_be_looked_at(run: Run, path: Path, tmp_path: Path) -> None:
    """SHEETS=FOLDER keeps them."""
    folder = Path(os.environ.get("SHEETS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    for name, variables in (("cpu", VARIABLES), ("graphs", OF_GRAPHS)):
        sheet = folder / f"{path.stem}.{name}.png"
        contact_sheet(path, run, variables, sheet)
        assert sheet.stat().st_size > 10_000
