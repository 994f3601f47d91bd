"""Compares the gradients of two processes with those of one; the program of `test_loop`."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))


def two_batches(recipe: Any, splits: Any, rank: int, world: int) -> list[dict[str, Tensor]]:
    """Return values, gradients and running statistics after each of two batches, in float64."""
    from proxemic.training.components import build_networks
    from proxemic.training.data import TrainingData

    model, loss = build_networks(recipe, splits)
    model.double()
    loss.double()
    network: torch.nn.Module = model
    if world > 1:
        loss.distribute()
        network = DistributedDataParallel(model)
    found = []
    for images, labels in list(TrainingData(splits.train, recipe, rank=rank, world=world).loader())[:2]:
        for module in (model, loss):
            module.zero_grad()
        value = loss(network(images.double()), labels)
        value.backward()
        tensors = {"value": value.detach()}
        for name, module in (("model", model), ("loss", loss)):
            for key, parameter in module.named_parameters():
                if parameter.requires_grad:
                    assert parameter.grad is not None
                    tensors[f"{name}.{key}"] = parameter.grad.clone()
            tensors |= {f"{name}.{key}": buffer.clone() for key, buffer in module.named_buffers()}
        found.append(tensors)
    return found


def clipped(rank: int) -> float:
    """Return the largest difference of gradients clipped by norm, if each process has half of one tensor."""
    from proxemic.optim.clipping import clip_norm

    torch.manual_seed(4)
    shared, whole = torch.randn(3, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)
    mine = slice(0, 4) if rank == 0 else slice(4, 6)
    ours = [torch.nn.Parameter(torch.zeros_like(value)) for value in (shared, whole[mine])]
    ours[0].grad, ours[1].grad = shared.clone(), whole[mine].clone()
    clip_norm(ours[:1], 0.5, local=ours[1:], group=dist.group.WORLD)
    factor = 0.5 / (shared.square().sum() + whole.square().sum()).sqrt()
    return max(
        float((parameter.grad - expected * factor).abs().max())
        for parameter, expected in zip(ours, (shared, whole[mine]), strict=True)
        if parameter.grad is not None
    )


if __name__ == "__main__":
    from processes import write
    from proxemic.recipes import find_recipe
    from proxemic.recipes.reader import read_recipe

    torch.set_num_threads(1)
    flags = [
        "--data.train_classes",
        "16",
        "--data.test_classes",
        "4",
        "--batches.size",
        "33",
        "--data.validation_fraction",
        "0",
        "--model.freeze_batch_norm",
        "true",
    ]
    recipe = read_recipe(find_recipe("glyphs-small/mpa"), flags).recipe
    splits = recipe.load()
    alone = two_batches(recipe, splits, 0, 1)
    dist.init_process_group("gloo")
    both = two_batches(recipe, splits, int(os.environ["RANK"]), 2)
    errors = [
        float((ours[name].double() - one[name].double()).abs().max() / one[name].abs().max().clamp(min=1e-30))
        for ours, one in zip(both, alone, strict=True)
        for name in one
    ]
    rank = int(os.environ["RANK"])
    write(
        {
            "worst": max(errors),
            "tensors": len(alone[0]),
            "clipped": clipped(rank),
        }
    )
    dist.destroy_process_group()
