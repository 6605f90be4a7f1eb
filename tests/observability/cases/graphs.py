"""Of the alerts on graphs and replays."""

from __future__ import annotations

from tests.observability.cases.case import OF_POD, POD, Case


def steps(replays: str, **eager: str) -> dict[str, str]:
    """Decode steps of a pod: replays, and eager ones by reason. The real series has the eager ones of all reasons."""
    return {
        **{f'soloist_eager_steps_total{{{POD}, reason="{reason}"}}': values for reason, values in eager.items()},
        **{
            f'soloist_step_seconds_count{{{POD}, mode="eager", of="{reason}"}}': values
            for reason, values in eager.items()
        },
        f'soloist_step_seconds_count{{{POD}, mode="replay"}}': replays,
    }


def chunks(whole: str, **eager: str) -> dict[str, str]:
    """Chunks of prompts, of which some are eager, by reason."""
    return {
        **{f'soloist_eager_prefills_total{{{POD}, reason="{reason}"}}': values for reason, values in eager.items()},
        f'soloist_step_seconds_count{{{POD}, mode="prefill"}}': whole,
    }


def every_20_minutes(one: int, times: int = 9) -> str:
    """Grows by so many all 20 minutes."""
    return " ".join(f"{turn * one}x19" for turn in range(times + 1))


CASES = (
    Case("SoloistEagerSteps", "a tenth", steps("0+90x60", capture_failed="0+10x60"), 20, OF_POD),
    Case(
        "SoloistEagerSteps",
        "a turn every 20 minutes, all eager",
        steps("0x180", unsupported_request=every_20_minutes(120)),
        119,
        OF_POD,
    ),
    Case(
        "SoloistEagerSteps",
        "a turn every 20 minutes, all replays",
        steps(every_20_minutes(120), unsupported_request="0x180"),
        119,
    ),
    Case(
        "SoloistEagerSteps",
        "three reasons of 0.6 %",
        steps(
            "0+982x60",
            capture_failed="0+6x60",
            context_beyond_graphs="0+6x60",
            unsupported_request="0+6x60",
        ),
        40,
        OF_POD,
    ),
    Case(
        "SoloistEagerSteps",
        "the largest reason is named first",
        {
            **steps("0+900x60", capture_failed="0+20x60"),
            **steps("0+900x60", unsupported_request="0+70x60"),
        },
        40,
        OF_POD,
        says="9.091% of the decode steps of half an hour were eager. "
        "Steps by reason: unsupported_request 2100, capture_failed 600.",
    ),
    Case("SoloistEagerSteps", "one reason of 0.6 %", steps("0+994x60", unsupported_request="0+6x60"), 40),
    Case("SoloistEagerSteps", "one in a thousand", steps("0+999x60", capture_failed="0+1x60"), 40),
    Case("SoloistEagerSteps", "a handful of steps", steps("0x60", capture_failed="0x5 20x54"), 20),
    Case("SoloistEagerSteps", "a CPU", steps("0x60", no_cuda="0+100x60"), 40),
    Case("SoloistEagerSteps", "graphs are off", steps("0x60", disabled="0+100x60"), 40),
    Case("SoloistEagerSteps", "warming up each graph", steps("0x3 0+90x57", warming_up="0+100x3 300x57"), 9),
    Case("SoloistEagerSteps", "nobody asks", steps("95x60", capture_failed="5x60"), 40),
    Case(
        "SoloistEagerSteps",
        "restarts between",
        steps("0+90x9 0+90x20", capture_failed="0+10x9 0+10x20"),
        25,
        OF_POD,
    ),
    Case("SoloistEagerSteps", "no such series", {}, 20),
    Case(
        "SoloistEagerPrefills",
        "chunks without memory for graphs",
        chunks("0+1x60", out_of_memory="0+1x60"),
        40,
        OF_POD,
    ),
    Case(
        "SoloistEagerPrefills",
        "a turn every 20 minutes",
        chunks(every_20_minutes(1), context_beyond_graphs=every_20_minutes(1)),
        119,
        OF_POD,
    ),
    Case(
        "SoloistEagerPrefills",
        "three reasons of 0.6 %",
        chunks("0+1000x60", out_of_memory="0+6x60", capture_failed="0+6x60", context_beyond_graphs="0+6x60"),
        40,
        OF_POD,
    ),
    Case(
        "SoloistEagerPrefills",
        "the largest reason is named first",
        chunks("0+100x90", out_of_memory="0+2x90", capture_failed="0+7x90"),
        80,
        OF_POD,
        says="9% of the prompts' chunks of an hour were prefilled eagerly, and first words came later. "
        "Chunks by reason: capture_failed 420, out_of_memory 120.",
    ),
    Case("SoloistEagerPrefills", "one in a thousand", chunks("0+1000x60", out_of_memory="0+1x60"), 40),
    Case("SoloistEagerPrefills", "two chunks", chunks("0x5 2x54", out_of_memory="0x5 2x54"), 20),
    Case("SoloistEagerPrefills", "a CPU", chunks("0+1x60", no_cuda="0+1x60"), 40),
    Case("SoloistEagerPrefills", "none", chunks("4x60", out_of_memory="4x60"), 40),
    Case("SoloistEagerPrefills", "no such series", {}, 20),
    Case(
        "SoloistCaptureFailed",
        "before the first scrape",
        {f'soloist_graph_captures_total{{{POD}, outcome="failed", cause="start"}}': "2x30"},
        10,
        {**OF_POD, "outcome": "failed"},
    ),
    Case(
        "SoloistCaptureFailed",
        "all captured",
        {
            f'soloist_graph_captures_total{{{POD}, outcome="captured", cause="start"}}': "24x30",
            f'soloist_graph_captures_total{{{POD}, outcome="failed", cause="start"}}': "0x30",
        },
        10,
    ),
    Case(
        "SoloistCaptureFailed",
        "the pod was replaced",
        {f'soloist_graph_captures_total{{{POD}, outcome="failed", cause="start"}}': "2x9 0x20"},
        15,
    ),
    Case(
        "SoloistSelfCheckFailed",
        "one",
        {f'soloist_self_checks_total{{{POD}, outcome="mismatch"}}': "0x5 1x9"},
        7,
        OF_POD,
    ),
    Case("SoloistSelfCheckFailed", "sound ones", {f'soloist_self_checks_total{{{POD}, outcome="sound"}}': "0+2x30"}, 9),
)
