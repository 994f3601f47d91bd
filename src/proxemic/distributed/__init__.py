"""A batch and its classes laid over the processes of torch.distributed; imports torch alone."""

from proxemic.distributed.gather import gather_batch, reduce_scores_across, sum_across
from proxemic.distributed.spread import Spread

__all__ = ["Spread", "gather_batch", "reduce_scores_across", "sum_across"]
