"""What a rank runs in training, evaluation and generation.

Names of tensors end in their shape, a letter a dimension: `query_BNSH` is (batch, query heads, positions, head width).

    B batch      S position         C cached or key position   T token (B x S)   R routed token (token and expert)
    D hidden     F feed-forward     V vocabulary               E expert
    N query head K key/value head   G heads of a group (K)     H head width
    I channel, M state (Mamba)      L low rank (LoRA, RWKV)    P pair of answers

A dimension that is divided among ranks keeps its letter; the docstring of a function says which are.
"""
