"""The line of figures says what happened, and nothing that did not."""

from __future__ import annotations

from service.cli.figures import TurnFigures, eager_text


def figures(**changes: object) -> TurnFigures:
    values: dict[str, object] = {
        "prompt_tokens": 31,
        "cached_tokens": 20,
        "completion_tokens": 11,
        "first_token_s": 0.25,
        "total_s": 1.25,
        "decode_s": 0.5,
        "replays": 11,
        "eager": {},
    }
    return TurnFigures(**{**values, **changes})  # type: ignore[arg-type]


def test_rate_is_over_the_steps_after_the_first() -> None:
    assert figures().tokens_per_s == 20.0


def test_no_rate_without_tokens() -> None:
    assert figures(completion_tokens=0, decode_s=0.0).tokens_per_s is None


def test_line_names_every_figure() -> None:
    line = figures(replays=0, eager={"no_cuda": 11}).line()
    for part in (
        "11 tokens",
        "first token 0.250 s",
        "20.0 tokens/s",
        "31 tokens, 20 cached",
        "replays 0",
        "11 (no_cuda 11)",
    ):
        assert part in line


def test_line_without_a_first_token() -> None:
    assert "no first token" in figures(first_token_s=None, completion_tokens=0, decode_s=0.0).line()


def test_eager_steps_by_reason() -> None:
    assert eager_text({}) == "0"
    assert eager_text({"warming_up": 2, "no_cuda": 3, "disabled": 0}) == "5 (no_cuda 3, warming_up 2)"
