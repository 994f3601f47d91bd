"""Losses over several processes of `torch.distributed`: the batch and the classes are divided among them.

Each process embeds its part of the batch and computes the scores of its shard of the classes; values and gradients are
those of a single process with the whole batch. Any number of processes can write and read sharded tensors. Imports only
torch and safetensors.
"""

from proxemic.distributed.class_sharding import ClassSharding
from proxemic.distributed.gather import gather_batch, reduce_scores_across, sum_across

__all__ = ["ClassSharding", "gather_batch", "reduce_scores_across", "sum_across"]
