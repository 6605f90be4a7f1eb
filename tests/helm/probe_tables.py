"""The tables of docs/probes.md, out of what the chart renders. `python -m tests.helm.probe_tables` writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from service.ops.drain import DrainTimes
from service.parts import HANG_CUDA_S
from tests.helm.rendering import NODES_CHART, Document, render, server, server_pod, settings_file, the
from tests.project.tree import ROOT

PAGE = ROOT / "docs" / "probes.md"
SCALED = {"autoscaling": {"mode": "hpa"}}
NOTICE_S = 120  # what AWS gives before it takes a spot instance
SPOT_S = 110  # of it, for the pod: Karpenter needs some to hear and to evict


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Markdown; columns of figures to the right."""
    lines = [f"| {' | '.join(head)} |", "|" + "|".join("---:" if name[-2:-1] == "s" else "---" for name in head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows)])


def _settings(file: str = "soloist.yaml", documents: list[Document] | None = None) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(settings_file(documents or _documents(), file))
    return read


def _documents() -> list[dict[str, Any]]:
    return render({"gateway": {"enabled": True}})


def _probe(question: str) -> dict[str, Any]:
    probe: dict[str, Any] = server(_documents())[f"{question}Probe"]
    return probe


def _budget_s(question: str) -> int:
    probe = _probe(question)
    return int(probe["periodSeconds"] * probe["failureThreshold"])


def _drain() -> DrainTimes:
    settings = _settings()
    return DrainTimes(propagation_s=settings["propagation_s"], grace_s=settings["grace_s"])


def _pre_stop_s() -> int:
    return int(server(_documents())["lifecycle"]["preStop"]["sleep"]["seconds"])


def questions() -> str:
    """The probes."""
    about = {
        "startup": ("is the model loaded, every graph captured?", "the container is started again"),
        "readiness": ("should new turns come here?", "the pod leaves the endpoints until it says yes"),
        "liveness": ("does the engine live?", "the container is started again"),
    }
    rows = [
        [f"`{name}`", asks, *(_probe(name)[key] for key in ("periodSeconds", "timeoutSeconds")),
         _probe(name).get("failureThreshold"), _budget_s(name), then]
        for name, (asks, then) in about.items()
    ]  # fmt: skip
    head = ["service name", "question", "every (s)", "timeout (s)", "failures", "so after (s)", "then"]
    return table(head, rows)


def starting() -> str:
    """What a new pod waits for."""
    deadline_s = the(_documents(), "Deployment", "soloist")["spec"]["progressDeadlineSeconds"]
    return table(
        ["step", "at most (s)", "where it is set"],
        [
            [
                "a node comes, the image is pulled",
                deadline_s - _budget_s("startup"),
                "fixed; only the roll-out's report",
            ],
            ["weights, self-check, captures", _budget_s("startup"), "`probes.startup.budgetSeconds`"],
            ["both: the roll-out counts as failed", deadline_s, "`progressDeadlineSeconds`, computed"],
        ],
    )


def leaving() -> str:
    """The end, second by second."""
    drain, pre_stop_s = _drain(), _pre_stop_s()
    grace_s = server_pod(_documents())["terminationGracePeriodSeconds"]
    steps = [
        ("`preStop` sleeps: the endpoints go, all else as before", pre_stop_s, "`shutdown.preStopSeconds`"),
        ("SIGTERM. NOT_SERVING, but new turns are still accepted", drain.propagation_s, "`settings.propagation_s`"),
        ("new turns are refused, running ones may end", drain.grace_s, "`settings.grace_s`"),
        ("those that cannot end are told so", drain.ending_s, "the server"),
        ("the engine's thread, handlers, traces and ports end", drain.stop_s, "the server"),
    ]
    rows: list[Sequence[object]] = []
    at_s = 0.0
    for what, lasts_s, where in steps:
        rows.append([what, f"{lasts_s:g}", f"{at_s:g} to {at_s + lasts_s:g}", where])
        at_s += lasts_s
    rows += [
        ["kubelet kills what is left", "", f"{grace_s}", "`terminationGracePeriodSeconds`, computed"],
        ["the most that the chart accepts on spot nodes", "", SPOT_S, "the chart"],
        ["the spot node is gone", "", NOTICE_S, "AWS"],
    ]
    return table(["step", "lasts at most (s)", "from the start (s)", "where it is set"], rows)


def connections() -> str:
    """What a connection is held to."""
    of_interest = {
        "ping_interval_s": "clients may ping no faster",
        "keepalive_s": "the server pings a silent connection",
        "keepalive_timeout_s": "and closes it without an answer after",
        "connection_age_s": "a connection is asked to come again, so that new pods get their share",
        "connection_age_grace_s": "and its answers may go on for",
        "write_stall_s": "a reader that takes nothing loses its turn after",
    }
    settings = _settings()
    rows = [[what, f"{settings[name]:g}", f"`settings.{name}`"] for name, what in of_interest.items()]
    scaled = _settings(documents=render(SCALED))["connection_age_s"]
    rows.insert(4, ["the same with autoscaling, at most", f"{scaled:g}", "`autoscaling.connectionAgeSeconds`"])
    return table(["what", "figure (s)", "where it is set"], rows)


def gateway() -> str:
    """The HTTP gateway's figures."""
    pod = server_pod(_documents(), "soloist-gateway")
    settings = _settings("gateway.yaml")
    [container] = pod["containers"]
    rows: list[Sequence[object]] = []
    for question in ("startup", "readiness", "liveness"):
        probe = container[f"{question}Probe"]
        after_s = probe["periodSeconds"] * probe["failureThreshold"]
        rows.append([f"{question}: `GET {probe['httpGet']['path']}` fails for", after_s, "fixed"])
    pre_stop_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    rows += [
        ["`preStop` sleeps", pre_stop_s, "`shutdown.preStopSeconds`"],
        ["not ready, requests still accepted", settings["propagation_s"], "`gateway.settings.propagation_s`"],
        ["answers may end", settings["grace_s"], "`gateway.settings.grace_s`"],
        ["kubelet kills what is left", pod["terminationGracePeriodSeconds"], "computed: the three, and 10 s"],
        ["the longest answer", settings["deadline_s"], "`gateway.settings.deadline_s`"],
    ]
    return table(["what", "figure (s)", "where it is set"], rows)


def _node_grace_s() -> float:
    values = yaml.safe_load((NODES_CHART / "values.yaml").read_text(encoding="utf-8"))
    minutes = str(values["disruption"]["terminationGracePeriod"])
    assert minutes.endswith("m"), minutes
    return float(minutes[:-1]) * 60


def relations() -> list[tuple[str, float, str, float]]:
    """(what must be at least, its figure, the other, its figure), as they are with the default values."""
    drain, pre_stop_s = _drain(), _pre_stop_s()
    grace_s = server_pod(_documents())["terminationGracePeriodSeconds"]
    settings = _settings()
    return [
        ("`preStop`, until endpoints are gone", pre_stop_s, "what proxies and kubelet need", 5),
        ("the pod's grace period", grace_s, "all that leaving may take", pre_stop_s + drain.total_s),
        ("the pod's share of a spot notice", SPOT_S, "its grace period", grace_s),
        ("a spot notice", NOTICE_S, "the pod's share and 10 s for Karpenter", SPOT_S + 10),
        ("a node's grace period (soloist-nodes)", _node_grace_s(), "the pod's", grace_s),
        ("the start-up budget", _budget_s("startup"), "what a GPU may need", 600),
        ("liveness fails after", _budget_s("liveness"), "the server's own watchdog on CUDA", HANG_CUDA_S),
        ("a look's period", _probe("liveness")["periodSeconds"], "its timeout", _probe("liveness")["timeoutSeconds"]),
        ("the time between two pings", settings["keepalive_s"], "what clients may do too", settings["ping_interval_s"]),
        ("a connection's grace", settings["connection_age_grace_s"], "the pod's grace period", grace_s),
    ]


def rules() -> str:
    """`relations` as a table."""
    rows = [[what, f"{value:g}", "≥", other, f"{least:g}"] for what, value, other, least in relations()]
    return table(["this", "(s)", "", "that", "(s)"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "questions": questions,
    "starting": starting,
    "leaving": leaving,
    "connections": connections,
    "gateway": gateway,
    "rules": rules,
}


def with_tables(text: str) -> str:
    """`text` with each table between its markers.

    Raises:
        ValueError: a marker is missing.
    """
    for name, make in TABLES.items():
        before, found, rest = text.partition(f"<!-- {name} -->\n")
        _, found_end, after = rest.partition(f"<!-- /{name} -->")
        if not (found and found_end):
            raise ValueError(f"docs/probes.md has no pair of markers <!-- {name} --> and <!-- /{name} -->")
        text = f"{before}<!-- {name} -->\n{make()}\n<!-- /{name} -->{after}"
    return text


def write(page: Path = PAGE) -> None:
    """Put the tables into the page."""
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write()
