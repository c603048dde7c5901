"""Norms: where they are, and what they normalise together."""

from __future__ import annotations

from neoxargs.resolve.rules.rule import Findings, check, refuse


@check
def norm_placement_after_needs_sequential_residual(
    norm_placement: str, gpt_j_residual: bool, apply_residual_connection_post_layernorm: bool
) -> Findings:
    """A norm after attention or after the MLP normalises what that block adds to the residual stream. With
    gpt_j_residual, attention and MLP are added as one sum over the tensor parallel ranks, so they cannot be normalised
    separately. apply_residual_connection_post_layernorm places the norms differently.

        norm_placement: both
        gpt_j_residual: true
    """
    other = "gpt_j_residual" if gpt_j_residual else "apply_residual_connection_post_layernorm"
    if norm_placement != "before" and (gpt_j_residual or apply_residual_connection_post_layernorm):
        what = f"norm_placement ({norm_placement}) and {other} cannot be combined"
        yield refuse(what, "remove one of them", about=["norm_placement", other])


@check
def qk_layernorm_of_all_heads_needs_rmsnorm(use_qk_layernorm: bool, qk_layernorm_scope: str, norm: str) -> Findings:
    """The queries of all heads are divided by their root mean square, to which every tensor parallel rank contributes.
    Other norms are computed within one rank only, and would normalise over the heads of that rank instead of all heads.

        use_qk_layernorm: true
        qk_layernorm_scope: all_heads
    """
    if use_qk_layernorm and qk_layernorm_scope != "head" and norm != "rmsnorm":
        what = f"qk_layernorm_scope ({qk_layernorm_scope}) needs norm: rmsnorm, but norm is {norm}"
        yield refuse(what, "set norm: rmsnorm, or remove qk_layernorm_scope", about=["qk_layernorm_scope", "norm"])
