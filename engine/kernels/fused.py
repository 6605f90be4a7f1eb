"""`engine.kernels.ops.Ops` in Triton: one step is five kernels a layer, a norm, the head and the pick.

Beside the residual stream `x` these ops keep its rounding to the weights' type, which the products read. They write it
whenever they write x. For R = 1, x must therefore be written by `embed`, `linear_residual` and `greedy_head_and_pick`
alone, or be announced by `adopt`. For R > 1 others may write x: it is rounded anew before each product.
"""

from __future__ import annotations

import torch

from engine.architecture import Architecture
from engine.kernels import attend as attend_kernel
from engine.kernels import embed as embed_kernel
from engine.kernels import head as head_kernel
from engine.kernels import linear_residual as linear_residual_kernel
from engine.kernels import norm as norm_kernel
from engine.kernels import norm_gate_up as norm_gate_up_kernel
from engine.kernels import norm_linear as norm_linear_kernel
from engine.kernels import pick as pick_kernel
from engine.kernels.launch import Launch
from engine.kernels.ops import DecoderWeights, LayerCache, LayerWeights, Linear, SlotTable
from engine.kernels.tuning import Tuning, tuning_for

MOST_ROWS = 8


class FusedOps:
    """See Ops. Allocates its scratch once; a step neither allocates nor synchronises.

    One object serves one stream at a time.
    """

    def __init__(
        self, architecture: Architecture, dtype: torch.dtype, device: torch.device, tuning: Tuning | None = None
    ) -> None:
        a = architecture
        if tuning is None:
            tuning = tuning_for(torch.cuda.get_device_name(device) if device.type == "cuda" else "")
        self.tuning = tuning
        self._launch = Launch.on(device)
        self._attend = tuning.attend_setting(a.heads, a.kv_heads, a.head_dim)
        self._norm_apart = a.width in tuning.norm_apart
        self._scratch = attend_kernel.AttendScratch.allocate(
            MOST_ROWS, a.heads, a.head_dim, self._attend.splits, device
        )
        self._rounded = torch.zeros(MOST_ROWS, a.width, dtype=dtype, device=device)
        self._rounded_one = torch.zeros(1, a.width, dtype=dtype, device=device)
        self._normed = torch.zeros(MOST_ROWS, a.width, dtype=dtype, device=device)
        self._keys = torch.full((MOST_ROWS, head_kernel.KEYS), head_kernel.NO_KEY, dtype=torch.int64, device=device)
        self._followed: int | None = None  # address of the one-row x whose rounding is kept

    def adopt(self, x: torch.Tensor) -> None:
        """Take over a one-row x that others have written."""
        norm_kernel.norm(x, None, 0.0, self.rounding(x), self._launch, norm=False, early=False)
        self._followed = x.data_ptr()

    def embed(self, embedding: torch.Tensor, table: SlotTable, x: torch.Tensor) -> None:
        """See Ops.embed."""
        embed_kernel.embed(embedding, table.active, table.token, None, x, self.rounding(x), self._launch)
        self._follow(x)

    def norm_linear(self, x: torch.Tensor, linear: Linear, eps: float, out: torch.Tensor) -> None:
        """See Ops.norm_linear."""
        source, norm = self._normed_or_rounded(x, eps)
        n, k = linear.weight.shape
        setting = self.tuning.row_setting("qkv", n, k)
        norm_linear_kernel.norm_linear(source, linear.weight, linear.bias, eps, out, setting, self._launch, norm=norm)

    def attend(
        self,
        qkv: torch.Tensor,
        layer: LayerWeights,
        weights: DecoderWeights,
        cache: LayerCache,
        table: SlotTable,
        bucket: int,
        eps: float,
        out: torch.Tensor,
    ) -> None:
        """See Ops.attend."""
        attend_kernel.attend(
            qkv, layer, weights, cache, table, bucket, eps, out, self._scratch, self._attend, self._launch
        )

    def linear_residual(self, x: torch.Tensor, linear: Linear, residual: torch.Tensor) -> None:
        """See Ops.linear_residual."""
        n, k = linear.weight.shape
        setting = self.tuning.row_setting("down" if k > n else "out", n, k)
        rounded = self.rounding(residual)
        linear_residual_kernel.linear_residual(x, linear.weight, linear.bias, residual, rounded, setting, self._launch)
        self._follow(residual)

    def norm_gate_up(self, x: torch.Tensor, linear: Linear, eps: float, out: torch.Tensor) -> None:
        """See Ops.norm_gate_up."""
        source, norm = self._normed_or_rounded(x, eps)
        n, k = linear.weight.shape
        setting = self.tuning.row_setting("gate_up", n, k)
        norm_gate_up_kernel.norm_gate_up(source, linear.weight, linear.bias, eps, out, setting, self._launch, norm=norm)

    def head(self, x: torch.Tensor, weights: DecoderWeights, eps: float, logits: torch.Tensor) -> None:
        """See Ops.head."""
        self._head(x, weights, eps, logits, None)

    def greedy_head_and_pick(
        self,
        x: torch.Tensor,
        weights: DecoderWeights,
        eps: float,
        logits: torch.Tensor,
        table: SlotTable,
        stop_ids: torch.Tensor,
        picked: torch.Tensor,
    ) -> None:
        """Head, greedy choice and embedding of one row, in place of head, the sampler and `embed`.

        x `[1, W]`, logits `[1, V]` float32, stop_ids `[S, E]` int64 padded with -1, picked `[1]` int64: the best id,
        the lowest of equals. Token, position and `stopped` of the active slot move on unless it has stopped; then x is
        the embedding of its token.
        """
        self._head(x, weights, eps, logits, self._keys)
        pick_kernel.pick(self._keys, table, stop_ids, picked, weights.embedding, x, self.rounding(x), self._launch)
        self._follow(x)

    def _head(
        self,
        x: torch.Tensor,
        weights: DecoderWeights,
        eps: float,
        logits: torch.Tensor,
        keys: torch.Tensor | None,
    ) -> None:
        normed = self._normed[: x.shape[0]]
        norm_kernel.norm(x, weights.final_norm, eps, normed, self._launch)
        n, k = weights.head.shape
        setting = self.tuning.row_setting("head", n, k)
        head_kernel.head(normed, weights.head, logits, keys, setting, self._launch)

    def rounding(self, x: torch.Tensor) -> torch.Tensor:
        """Where the rounding of x is kept. One row has its own, since it lasts from step to step."""
        return self._rounded_one if x.shape[0] == 1 else self._rounded[: x.shape[0]]

    def _follow(self, x: torch.Tensor) -> None:
        if x.shape[0] == 1:
            self._followed = x.data_ptr()

    def _normed_or_rounded(self, x: torch.Tensor, eps: float) -> tuple[torch.Tensor, bool]:
        """What a product behind a norm reads, and whether it still has to apply the norm's factor."""
        if self._norm_apart:
            normed = self._normed[: x.shape[0]]
            norm_kernel.norm(x, None, eps, normed, self._launch)
            return normed, False
        rounded = self.rounding(x)
        if x.shape[0] > 1 or self._followed != x.data_ptr():
            norm_kernel.norm(x, None, eps, rounded, self._launch, norm=False)
            self._follow(x)
        return rounded, True
