"""Log-probabilities of a step: of the chosen id, and of the likeliest. Plain torch on every device: few turns ask."""

from __future__ import annotations

import torch


def write_logprobs(
    logits: torch.Tensor,
    picked: torch.Tensor,
    logprob: torch.Tensor,
    top_ids: torch.Tensor,
    top_logprobs: torch.Tensor,
) -> None:
    """logits `[V]` float32, picked `[1]` int64, logprob `[1]` float32, top_ids `[n]` int64, top_logprobs `[n]` float32.

    They are of the model's own distribution, before penalties, bias and temperature. With V < n the rest is left.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    logprob.copy_(logprobs.gather(0, picked))
    top = torch.topk(logprobs, min(top_ids.shape[0], logits.shape[0]))
    top_logprobs[: top.values.shape[0]].copy_(top.values)
    top_ids[: top.indices.shape[0]].copy_(top.indices)
