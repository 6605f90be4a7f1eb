"""Of the alerts on what readers feel."""

from __future__ import annotations

from tests.observability.cases.case import MODEL, OF_MODEL, OF_NAMESPACE, OF_POD, POD, Case

FIRST = "gen_ai_server_time_to_first_token_seconds"


def first_tokens(slow: str, whole: str) -> dict[str, str]:
    """`whole` first tokens, as many within 2.5 s as `slow` is not."""
    return {f'{FIRST}_bucket{{{MODEL}, le="2.5"}}': slow, f"{FIRST}_count{{{MODEL}}}": whole}


def gaps(within_02: str, whole: str) -> dict[str, str]:
    """Tokens by the gap before them: within 0.2 s, and all of them within 0.3 s."""
    name = "soloist_inter_token_seconds"
    return {
        f'{name}_bucket{{{POD}, le="0.2"}}': within_02,
        f'{name}_bucket{{{POD}, le="0.3"}}': whole,
        f'{name}_bucket{{{POD}, le="+Inf"}}': whole,
        f"{name}_count{{{POD}}}": whole,
    }


def waits(within_5: str, whole: str) -> dict[str, str]:
    """Turns by their time in the queue: within 5 s, and all of them within 10 s."""
    name = "soloist_queue_seconds"
    return {
        f'{name}_bucket{{{POD}, le="5.0"}}': within_5,
        f'{name}_bucket{{{POD}, le="10.0"}}': whole,
        f'{name}_bucket{{{POD}, le="+Inf"}}': whole,
    }


def turns(refused: str, ended: str, reason: str = "queue_full") -> dict[str, str]:
    return {
        f'soloist_rejections_total{{{POD}, reason="{reason}"}}': refused,
        f'soloist_requests_total{{{POD}, reason="stop"}}': ended,
    }


CASES = (
    # 30 first tokens a minute; the budget's rate 14.4 is a share of 0.72, 6 is 0.3.
    Case("SoloistFirstTokenBurnFast", "nine of ten late", first_tokens("0+3x90", "0+30x90"), 90, OF_MODEL),
    Case(
        "SoloistFirstTokenBurnFast", "four of ten late, for hours", first_tokens("0+18x400", "0+30x400"), 400, OF_MODEL
    ),
    Case("SoloistFirstTokenBurnFast", "two of ten late", first_tokens("0+24x400", "0+30x400"), 400),
    Case("SoloistFirstTokenBurnFast", "late until an hour ago", first_tokens("0+3x60 210+30x60", "0+30x121"), 115),
    Case("SoloistFirstTokenBurnFast", "a handful of turns", first_tokens("0x90", "0 1 2 3 4 5x85"), 70),
    Case("SoloistFirstTokenBurnFast", "nobody asks", first_tokens("50x90", "80x90"), 90),
    Case("SoloistFirstTokenBurnFast", "no such series", {}, 90),
    Case(
        "SoloistFirstTokenBurnFast",
        "a restart is no burst of late ones",
        first_tokens("0+30x60 0+30x30", "0+30x60 0+30x30"),
        90,
    ),
    # 3 is a share of 0.15, 1 of 0.05.
    Case(
        "SoloistFirstTokenBurnSlow",
        "two of ten late for a day",
        first_tokens("0+24x150", "0+30x150"),
        1500,
        OF_MODEL,
        10,
    ),
    Case(
        "SoloistFirstTokenBurnSlow", "6 % late for three days", first_tokens("0+47x440", "0+50x440"), 4400, OF_MODEL, 10
    ),
    Case("SoloistFirstTokenBurnSlow", "4 % late for three days", first_tokens("0+48x440", "0+50x440"), 4400, None, 10),
    Case("SoloistFirstTokenBurnSlow", "no such series", {}, 1500, None, 10),
    Case("SoloistSlowTokens", "5 % halt", gaps("0+570x30", "0+600x30"), 20, OF_POD),
    Case("SoloistSlowTokens", "one in a thousand halts", gaps("0+599.4x30", "0+600x30"), 20),
    Case("SoloistSlowTokens", "not for long", gaps("0+600x20 11430+570x8", "0+600x29"), 28),
    Case("SoloistSlowTokens", "one token a minute", gaps("0x30", "0+1x30"), 20),
    Case("SoloistSlowTokens", "a restart between", gaps("0+570x12 0+570x18", "0+600x12 0+600x18"), 28, OF_POD),
    Case("SoloistSlowTokens", "no such series", {}, 20),
    Case("SoloistQueueWait", "a tenth waits long", waits("0+9x30", "0+10x30"), 20, OF_NAMESPACE),
    Case("SoloistQueueWait", "one in fifty waits long", waits("0+49x30", "0+50x30"), 20),
    Case(
        "SoloistQueueWait",
        "nobody leaves the queue, and it is predicted",
        {**waits("5x30", "5x30"), f"soloist_predicted_wait_seconds{{{POD}}}": "0x5 12x25"},
        20,
        OF_NAMESPACE,
    ),
    Case("SoloistQueueWait", "a short rush", {f"soloist_predicted_wait_seconds{{{POD}}}": "0x5 12x3 0x20"}, 10),
    Case("SoloistQueueWait", "no such series", {}, 20),
    Case("SoloistRefusals", "one in five", turns("0+2x30", "0+8x30"), 20, OF_NAMESPACE),
    Case("SoloistRefusals", "one in fifty", turns("0+1x30", "0+49x30"), 20),
    Case("SoloistRefusals", "bad requests are the callers'", turns("0+8x30", "0+2x30", "invalid_request"), 20),
    Case("SoloistRefusals", "a drain is meant", turns("0+8x30", "0+2x30", "draining"), 20),
    Case("SoloistRefusals", "nobody asks", turns("7x30", "9x30"), 20),
    Case("SoloistRefusals", "restarts between", turns("0+2x9 0+2x20", "0+8x9 0+8x20"), 25, OF_NAMESPACE),
    Case(
        "SoloistFailedTurns",
        "one failed",
        {f'soloist_requests_total{{{POD}, reason="failed"}}': "0x5 1x20"},
        8,
        {**OF_POD, "reason": "failed"},
    ),
    Case("SoloistFailedTurns", "long ago", {f'soloist_requests_total{{{POD}, reason="failed"}}': "0x5 1x30"}, 25),
    Case(
        "SoloistFailedTurns", "cancelled ones", {f'soloist_requests_total{{{POD}, reason="cancelled"}}': "0+9x30"}, 20
    ),
    Case("SoloistFailedTurns", "a restart", {f'soloist_requests_total{{{POD}, reason="failed"}}': "3x5 0x20"}, 8),
    Case(
        "SoloistHostStalls",
        "a fifth of the time",
        {
            f'soloist_stall_seconds_total{{{POD}, cause="host"}}': "0+6x40",
            f"soloist_inter_token_seconds_sum{{{POD}}}": "0+30x40",
        },
        30,
        OF_POD,
    ),
    Case(
        "SoloistHostStalls",
        "a hundredth, and much of other sessions",
        {
            f'soloist_stall_seconds_total{{{POD}, cause="host"}}': "0+0.3x40",
            f'soloist_stall_seconds_total{{{POD}, cause="other_session"}}': "0+15x40",
            f"soloist_inter_token_seconds_sum{{{POD}}}": "0+30x40",
        },
        30,
    ),
    Case("SoloistHostStalls", "no such series", {}, 30),
)
