"""The exchange of tokens between the data parallel ranks that divide the experts of a layer among them.

Each rank sends every row to the rank that holds its expert, and gets the expert's output back (Lepikhin et al. 2020,
"GShard", arXiv:2006.16668). How many rows a rank sends and receives depends on the routing: the ranks tell each other
first.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from neoxargs.train.autograd import linear
from neoxargs.train.process.collectives import all_to_all
from neoxargs.train.process.mesh import Axis


class Exchange:
    """Sends the rows of one micro batch to the ranks of their experts and back, with gradients. Collective.

    counts: in the constructor, the number of this rank's rows for each expert, (experts); as an attribute, the number
    of rows that this rank has received for each of its own experts, (experts / ranks).
    """

    def __init__(self, counts: Tensor, axis: Axis) -> None:
        ours = counts.view(axis.size, -1)  # (rank that holds the experts, expert)
        theirs = all_to_all(ours, axis.group)  # (rank that has the tokens, expert)
        self.axis, self.counts = axis, theirs.sum(0)
        # Sizes are needed on the host; one transfer for both lists.
        self.sent, self.received = torch.stack((ours.sum(1), theirs.sum(1))).tolist()
        experts = torch.arange(ours.shape[1], device=counts.device).repeat(axis.size)
        #: The places of the rows in the order of the experts; they arrive in the order of the ranks.
        repeated = experts.repeat_interleave(theirs.flatten(), output_size=sum(self.received))
        self._order = repeated.argsort(stable=True)

    def there(self, rows: Tensor) -> Tensor:
        """Return the rows for this rank's experts, from this rank's rows; both are sorted by expert."""
        arrived = self._all_to_all(rows, self.sent, self.received)
        return arrived.index_select(0, self._order)

    def back(self, outputs: Tensor) -> Tensor:
        """Return the outputs of this rank's rows, from the outputs of this rank's experts."""
        # argsort of an order is its inverse.
        by_rank = outputs.index_select(0, self._order.argsort())
        return self._all_to_all(by_rank, self.received, self.sent)

    def _all_to_all(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Send the first sent[0] rows to rank 0, the next ones to rank 1 and so on; receive likewise."""

        def exchanged(rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
            arrived = rows.new_empty(sum(received), rows.shape[1])
            dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group=self.axis.group)
            return arrived

        return linear(
            rows, lambda x: exchanged(x, sent, received), lambda gradient: exchanged(gradient, received, sent)
        )
