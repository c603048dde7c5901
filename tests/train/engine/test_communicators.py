"""What the ranks of a pipeline send to each other is on communicators of their own."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from tests.support.ranks import run_ranks
from tests.support.trials import Trial, started


def groups_of_sends(trials: dict[str, Trial]) -> list[tuple[str, list[int]]]:
    """Return the operators of a step that send between stages, with the ranks of their groups."""
    found: list[tuple[str, list[int]]] = []
    for _, built in started(trials):
        with pytest.MonkeyPatch.context() as patch:
            for name in ("send", "recv"):
                inner = getattr(dist, name)

                def call(tensor, *arguments, name=name, inner=inner, **keywords):  # type: ignore[no-untyped-def]
                    found.append((name, dist.get_process_group_ranks(keywords.get("group"))))
                    return inner(tensor, *arguments, **keywords)

                patch.setattr(dist, name, call)
            built.engine.train_step(built.batches)
    return found


def test_stages_send_within_their_pipeline() -> None:
    """Of two replicas of two stages, ranks 0 and 2, and 1 and 3."""
    for rank, found in enumerate(run_ranks(groups_of_sends, 4, {"": Trial({"pipe_parallel_size": 2})})):
        assert {name for name, _ in found} == {"send", "recv"}
        assert all(ranks == [rank % 2, rank % 2 + 2] for _, ranks in found)
