"""Attention between two chunks of a sequence: what the positions of their tokens determine, and its two kernels.

flex_attention on GPUs, where it stores no scores and skips blocks; separate steps on CPUs, for which torch has no
backward pass of flex_attention. Both also return the log-sum-exp of each query's scores, by which outputs are merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neoxargs.train.ops import flex
from neoxargs.train.ops.mask_rule import MaskRule
from neoxargs.train.ops.sdpa import repeat_heads
from neoxargs.train.ops.tables import Tables

#: Below every score: exp of it is 0, and no arithmetic with it gives NaN.
LOWEST = -1e30


@dataclass(frozen=True)
class Chunks:
    """The chunks of the sequences of a micro batch, of `size` tokens each, numbered from 0."""

    rule: MaskRule
    """Without a pattern."""
    softcap: float
    """As of `ScoreRule`."""
    size: int
    starts_BS: Tensor | None
    """The position of all tokens' documents in the whole sequence; None if attention crosses documents."""
    tables: Tables

    def see(self, rows: int, columns: int) -> bool:
        """Return whether a token of one chunk can attend to a token of another, as far as all samples agree."""
        within = not self.rule.window or (rows - columns - 1) * self.size < self.rule.window
        return columns <= rows and within

    def attend(
        self, query_BNSH: Tensor, key_BKSH: Tensor, value_BKSH: Tensor, rows: int, columns: int
    ) -> tuple[Tensor, Tensor]:
        """Return context_BNSH, and the log-sum-exp of the scores (B, N, S) in fp32, as `ring.Block` says.

        query_BNSH: of chunk `rows`. key_BKSH, value_BKSH: of chunk `columns`.
        """
        compute = self.in_flex if query_BNSH.is_cuda else self.in_steps
        return compute(query_BNSH, key_BKSH, value_BKSH, rows, columns)

    def in_flex(
        self, query_BNSH: Tensor, key_BKSH: Tensor, value_BKSH: Tensor, rows: int, columns: int
    ) -> tuple[Tensor, Tensor]:
        """Let flex_attention compute `attend` block by block."""
        mask = None
        if (attends := self._attends(rows, columns, query_BNSH.device)) is not None:
            mask = self._block_mask(attends, rows, columns, query_BNSH.device)
        return flex.with_lse(
            query_BNSH.is_cuda,
            query_BNSH,
            key_BKSH,
            value_BKSH,
            score_mod=self._change(rows, columns, query_BNSH.device),
            block_mask=mask,
            enable_gqa=key_BKSH.shape[1] < query_BNSH.shape[1],
        )

    def in_steps(
        self, query_BNSH: Tensor, key_BKSH: Tensor, value_BKSH: Tensor, rows: int, columns: int
    ) -> tuple[Tensor, Tensor]:
        """Compute `attend` from the scores of all pairs of tokens of the two chunks."""
        device = query_BNSH.device
        key_BKSH, value_BKSH = repeat_heads(key_BKSH, value_BKSH, query_BNSH.shape[1])
        wide = torch.promote_types(query_BNSH.dtype, torch.float32)
        scores_BNSC = (query_BNSH / query_BNSH.shape[-1] ** 0.5).to(wide) @ key_BKSH.to(wide).transpose(-1, -2)
        batch, heads, seq, _ = scores_BNSC.shape
        place = [torch.arange(count, device=device).view(-1, *[1] * (3 - number))
                 for number, count in enumerate((batch, heads, seq, seq))]  # fmt: skip
        if change := self._change(rows, columns, device):
            scores_BNSC = change(scores_BNSC, *place)
        attends = self._attends(rows, columns, device)
        if attends is None:
            lse_BNS = scores_BNSC.logsumexp(-1)
            return (scores_BNSC - lse_BNS.unsqueeze(-1)).exp().to(value_BKSH.dtype) @ value_BKSH, lse_BNS
        mask = attends(*place)
        scores_BNSC = scores_BNSC.masked_fill(~mask, LOWEST)
        largest_BNS1 = scores_BNSC.detach().amax(-1, keepdim=True)
        shares_BNSC = (scores_BNSC - largest_BNS1).exp() * mask
        total_BNS1 = shares_BNSC.sum(-1, keepdim=True)
        some = total_BNS1 > 0
        total_BNS1 = total_BNS1.where(some, 1.0)
        lse_BNS = (largest_BNS1 + total_BNS1.log()).where(some, -torch.inf).squeeze(-1)
        return (shares_BNSC / total_BNS1).to(value_BKSH.dtype) @ value_BKSH, lse_BNS

    def _shift(self, rows: int, columns: int, device: torch.device) -> Tensor:
        """Return by how much the positions of rows exceed those of columns; a tensor, so that kernels are shared."""
        shift = (rows - columns) * self.size
        return self.tables.get(("shift", shift, device), lambda: torch.tensor(shift, device=device))

    def _change(self, rows: int, columns: int, device: torch.device) -> flex.Change | None:
        lower = flex.alibi_change(self.rule, device, self.tables, self._shift(rows, columns, device))
        return flex.bounded(self.softcap, lower)

    def _attends(self, rows: int, columns: int, device: torch.device) -> flex.Attends | None:
        """Return which tokens of the chunks attend to each other, by their places in them; None if all do."""
        window = self.rule.window if 0 < self.rule.window < (rows - columns + 1) * self.size - 1 else 0
        starts = None
        if self.starts_BS is not None:
            of = [slice(chunk * self.size, (chunk + 1) * self.size) for chunk in (rows, columns)]
            starts = self.starts_BS[:, of[0]], self.starts_BS[:, of[1]]
        if rows > columns and not window and starts is None:
            return None
        return flex.attends(self._shift(rows, columns, device), rows == columns, window, starts)

    def _block_mask(self, attends: flex.Attends, rows: int, columns: int, device: torch.device) -> Any:
        key = ("chunks", self.rule.window, rows, columns, self.size, device)

        def build() -> Any:
            return flex.block_mask_between(
                attends, self.rule.window, (rows * self.size, columns * self.size), self.size, device, self.starts_BS
            )

        if self.starts_BS is None:
            return self.tables.get(key, build)
        return self.tables.derived(key, self.starts_BS, build)
