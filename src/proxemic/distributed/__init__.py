"""A batch and its classes laid over the processes of torch.distributed; imports torch alone."""

from proxemic.distributed.class_sharding import ClassSharding
from proxemic.distributed.gather import gather_batch, reduce_scores_across, sum_across

__all__ = ["ClassSharding", "gather_batch", "reduce_scores_across", "sum_across"]
