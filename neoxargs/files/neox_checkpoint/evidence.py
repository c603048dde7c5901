"""Determine the order of query, key and value rows if the names and shapes of the tensors leave it open."""

from __future__ import annotations

from typing import Literal, NamedTuple

from neoxargs.base.problems import Problem, Problems
from neoxargs.files.neox_checkpoint.contents import Contents
from neoxargs.files.neox_checkpoint.weights import Located
from neoxargs.registry.model import Shape

#: per_head: the rows of each query head, then its share of the keys and of the values. concatenated: all queries of a
#: rank, then all keys, then all values. GPT-NeoX changed the order of models with num_kv_heads on 2024-11-13.
Order = Literal["per_head", "concatenated"]
#: The first DeepSpeed that was released after that day.
CONCATENATED_SINCE = (0, 16)


class Decision(NamedTuple):
    order: Order
    reason: str


def query_key_value_order(contents: Contents, located: Located, shape: Shape, chosen: Order | None) -> Decision:
    """Return the order of the rows of query_key_value; raise Problems if nothing in the files decides it.

    chosen: `load_query_key_value_order`.
    """
    grouped = shape.num_kv_heads != shape.num_attention_heads
    if chosen is not None:
        return Decision(chosen, "load_query_key_value_order is set")
    if located.weights["layers.0.attention.query_key_value.weight"].cut == "rows":
        return Decision("per_head", "Transformer Engine's attention keeps the rows of a group of heads together")
    if not grouped and not _is_converted(contents, located):
        return Decision("per_head", "every head has its own keys and values")
    if grouped and located.legacy:
        return Decision("per_head", "the MLP weights have the names used before September 2024")
    version = contents.deepspeed
    if grouped and version and version >= CONCATENATED_SINCE:
        return Decision(
            "concatenated",
            f"the checkpoint was written with DeepSpeed {version[0]}.{version[1]}, which was released after GPT-NeoX "
            "changed the order (2024-11-13)",
        )
    program, day = ("GPT-NeoX", "2024-11-13") if grouped else ("GPT-NeoX's converter from Llama", "2025-05-09")
    what = f"load ({contents.folder}): the files do not show the order of the query, key and value rows; {program} "
    what += f"changed that order on {day}"
    hint = (
        "set load_query_key_value_order: per_head for a checkpoint from before that date, or concatenated for a "
        "later one; with the wrong order, the first loss is close to that of an untrained model"
    )
    about = ("load", "load_query_key_value_order")
    raise Problems(Problem(what, hint=hint, id="checkpoint-order-unknown", about=about))


def _is_converted(contents: Contents, located: Located) -> bool:
    """Return whether GPT-NeoX's converter from Llama wrote the checkpoint: it stores an empty optimizer state."""
    state = contents.common
    return not located.legacy and state.get("optimizer") == {} and "ds_version" not in state
