"""A batch and the classes of a loss laid over the processes of `torch.distributed`.

Each process embeds its part of the batch and works on its shard of the classes; values and gradients are those of one
process with the whole batch. Sharded tensors are written and read by any number of processes. Imports torch and
safetensors alone.
"""

from proxemic.distributed.class_sharding import ClassSharding
from proxemic.distributed.gather import gather_batch, reduce_scores_across, sum_across

__all__ = ["ClassSharding", "gather_batch", "reduce_scores_across", "sum_across"]
