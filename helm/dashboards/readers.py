"""What readers feel: the wait for the first word, the evenness of the rest, and whether it came at all."""

from __future__ import annotations

from helm.dashboards import fleet, limits
from helm.dashboards.names import ANSWER, BETWEEN, FIRST, OWN_FAULTS, PER_TOKEN, QUEUE, WANTED_ROOM
from helm.dashboards.page import Page, Row
from helm.dashboards.panels import (
    COUNT,
    PER_SECOND,
    SECONDS,
    SHARE,
    TOKENS_PER_SECOND,
    Query,
    figure,
    graph,
    spread,
)
from helm.dashboards.promql import IN_NAMESPACE, grown, quantile, rate, series, share, total


def page() -> Page:
    """The dashboard."""
    return Page(
        uid="soloist-readers",
        title="Soloist: what readers feel",
        description="Waiting, reading, being turned away: the service as its readers see it.",
        rows=(at_a_glance(), first_word(), reading(), whole_answers(), turned_away(), fleet.readers_by_pod()),
    )


def quantiles(histogram: str) -> list[Query]:
    """The usual reader, the unlucky one in twenty, and the one in a hundred."""
    return [Query(quantile(q, histogram), f"p{100 * q:g}") for q in (0.5, 0.95, 0.99)]


def at_a_glance() -> Row:
    late = total(grown(f"{FIRST}_bucket", 'le="2.5"'))
    all_first = total(grown(f"{FIRST}_count"))
    turns = f"({total(grown('soloist_requests_total'))} + {total(grown('soloist_rejections_total'))})"
    return Row(
        "At a glance",
        (
            figure(
                "First word",
                "95 of 100 first tokens came within this time of admission. Normal: well below 1 s on a GPU. Orange: "
                "look at the queue and at prompts' lengths. Red: SoloistFirstTokenBurnFast will fire; see its "
                "runbook.",
                SECONDS,
                quantile(0.95, FIRST, over="$__range"),
                steps=limits.FIRST_TOKEN,
            ),
            figure(
                "Between words",
                "99 of 100 tokens came within this time of the one before. Normal: what a step takes, times the "
                "turns that share the device. Readers notice 0.2 s. Red: see stalls by cause below.",
                SECONDS,
                quantile(0.99, BETWEEN, over="$__range"),
                steps=limits.BETWEEN_TOKENS,
            ),
            figure(
                "Late first words",
                "Share of the first tokens that took longer than 2.5 s. The objective allows 5 % over 30 days.",
                SHARE,
                f"1 - {share(late, all_first)}",
                steps=limits.FEW,
            ),
            figure(
                "Turned away",
                "Share of all turns that were refused because the queue was full, the deadline could not be met or "
                "no model was loaded. Normal: 0. Otherwise add replicas, or look for pods that are not ready.",
                SHARE,
                share(total(grown("soloist_rejections_total", WANTED_ROOM)), turns),
                steps=limits.FEW,
            ),
            figure(
                "Broken answers",
                "Turns that ended with an error of the server's own, in the time shown. Normal: 0. Otherwise the log "
                "has a line for each, with its request id.",
                COUNT,
                total(grown("soloist_requests_total", OWN_FAULTS)),
                steps=limits.ANY,
            ),
            figure(
                "Pods that serve",
                "Now, in the chosen namespaces, whatever model they serve. 0: nobody is answered.",
                COUNT,
                total(series("soloist_readiness", 'state="serving"', chosen=IN_NAMESPACE)),
                steps=((0, "red"), (1, "green")),
                none="none",
            ),
        ),
    )


def first_word() -> Row:
    return Row(
        "Waiting for the first word",
        (
            graph(
                "Time to first token",
                "From admission to the first token: queue, prompt, one step. Normal: flat. p99 alone high: long "
                "prompts. All high: the queue (right) or a slow device (the other dashboard).",
                SECONDS,
                quantiles(FIRST),
            ),
            spread(
                "First tokens by their time",
                "How many first tokens came after how long. Two bands are two kinds of turns: those whose session is "
                "still cached, and those that read a long prompt.",
                total(rate(f"{FIRST}_bucket"), "le"),
            ),
            graph(
                "Time in the queue",
                "Of turns that left the queue, and what the fullest pod tells a new one. Normal: near 0. Above 5 s "
                "SoloistQueueWait fires: add replicas, or let more turns share a device.",
                SECONDS,
                [
                    Query(quantile(0.5, QUEUE), "p50"),
                    Query(quantile(0.95, QUEUE), "p95"),
                    Query(f"max({series('soloist_predicted_wait_seconds')})", "predicted, fullest pod"),
                ],
            ),
            graph(
                "Turns that wait and that play",
                "Of all pods together. Waiting turns while pods play fewer than they may: balancing is uneven; see "
                "the table below.",
                COUNT,
                [
                    Query(total(series("soloist_queue_depth")), "waiting"),
                    Query(total(series("soloist_active_turns")), "playing"),
                ],
            ),
        ),
        width=12,
    )


def reading() -> Row:
    stalled = total(rate("soloist_stall_seconds_total"), "cause")
    return Row(
        "While it reads",
        (
            graph(
                "Time between tokens",
                "From one token of an answer to its next. Normal: narrow and flat. A p99 far above p50 is halting "
                "text.",
                SECONDS,
                quantiles(BETWEEN),
            ),
            spread(
                "Tokens by the gap before them",
                "How many tokens came how long after the one before. A second band at twice the time: two turns "
                "share a device. A far one: prefill of others' prompts, or stalls.",
                total(rate(f"{BETWEEN}_bucket"), "le"),
            ),
            graph(
                "Stalls by cause",
                "Share of the time between tokens that was waiting: for steps of other turns, others' prompts, an "
                "eager step that should have been a replay, a slow reader, or the host. Normal: other_session under "
                "load, the rest near 0. Much host: the pod lacks CPU (SoloistHostStalls).",
                SHARE,
                [
                    Query(
                        f"{stalled} / on () group_left () ({total(rate(f'{BETWEEN}_sum'))} > 0)",
                        "{{cause}}",
                    )
                ],
                stacked=True,
            ),
            graph(
                "Mean time per token of a turn",
                "One value a turn: its time after the first token, by its tokens. What OpenTelemetry calls time per "
                "output token, by model.",
                SECONDS,
                [
                    Query(quantile(q, PER_TOKEN, "gen_ai_request_model"), f"p{100 * q:g} {{{{gen_ai_request_model}}}}")
                    for q in (0.5, 0.95)
                ],
            ),
        ),
        width=12,
    )


def whole_answers() -> Row:
    return Row(
        "Whole answers",
        (
            graph(
                "Time of an answer",
                "From admission to the end. It grows with the answers' length, so read it beside the tokens.",
                SECONDS,
                quantiles(ANSWER),
            ),
            graph(
                "How turns end",
                "A second. Normal: stop and length, some cancelled. draining: answers that go on elsewhere. failed, "
                "engine_lost: SoloistFailedTurns. slow_reader: clients that stopped reading.",
                PER_SECOND,
                [Query(f"{total(rate('soloist_requests_total'), 'reason')}", "{{reason}}")],
                stacked=True,
            ),
            graph(
                "Tokens made",
                "Given to readers, and in vain for turns that were broken off. Normal: in vain is a token or two for "
                "each cancelled turn.",
                TOKENS_PER_SECOND,
                [Query(total(rate("soloist_tokens_total", 'kind=~"completion|discarded"'), "kind"), "{{kind}}")],
            ),
            graph(
                "From break-off to rest",
                "How long the engine works on for a turn that nobody wants any more. Normal: one step. More: others "
                "pay.",
                SECONDS,
                [
                    Query(quantile(0.5, "soloist_cancel_to_idle_seconds"), "p50"),
                    Query(quantile(0.99, "soloist_cancel_to_idle_seconds"), "p99"),
                ],
            ),
        ),
        width=12,
    )


def turned_away() -> Row:
    return Row(
        "Turned away, handed over",
        (
            graph(
                "Refusals by reason",
                "A second. queue_full, deadline_unmeetable: too few replicas. caller_limit: one caller asks for more "
                "than its share. not_ready, draining: clients go elsewhere by themselves. invalid_request: a "
                "client's bug.",
                PER_SECOND,
                [Query(total(rate("soloist_rejections_total"), "reason"), "{{reason}}")],
                stacked=True,
            ),
            graph(
                "Resumed answers",
                "A second: answers that were broken off elsewhere and go on here, exactly or by reading what was "
                "said. Normal: as many as pods' drains broke off. Without drains: connections break, or servers "
                "crash.",
                PER_SECOND,
                [Query(total(rate("soloist_resumes_total"), "mode"), "{{mode}}")],
            ),
        ),
        width=12,
    )
