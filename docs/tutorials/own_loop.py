# %% [markdown]
# # Your own training loop, several losses, and what they pull and push
#
# A loss of this package is a PyTorch module, so it fits into any training loop. This tutorial trains the same network
# with several losses in a plain loop, draws the forces of a loss, and shows the effect of a regulariser of the proxies.
# `pip install '.[train]'` in a checkout installs what it needs.

# %%
import tempfile
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import DataLoader

import proxemic
from proxemic.analysis import plot_gradient_field, squared_gaps
from proxemic.data import ClassBalancedBatches, EmbeddingDataset, Glyphs, Preprocessing
from proxemic.losses import (
    AllPairMultiProxyAnchorLoss,
    MeanProxyNorm,
    NormalizedSoftmaxLoss,
    ProxyAnchorLoss,
    ProxyLoss,
    class_balanced_weights,
)
from proxemic.metrics import retrieval_metrics
from proxemic.models import ModelConfig, build_model
from proxemic.training import embed_dataset

proxemic.keep_freed_memory()
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Data and network
#
# Any PyTorch data set of pairs of an image and a label will do. `Glyphs` are characters in twelve typefaces: 60
# characters for training and 60 others for the test, because an embedding is evaluated on classes that it has not seen.
# `ClassBalancedBatches` draws several images of each of several classes: Proxy-Anchor, MPA and all losses of pairs need
# several images of a class in a batch.

# %%
splits = Glyphs(train_classes=60, test_classes=60, validation_fraction=0).load()
preprocessing = Preprocessing(size=32, resize=None, channels=1, mean=(0.1,), std=(0.3,))
train = EmbeddingDataset(splits.train, preprocessing.evaluation())
test = EmbeddingDataset(splits.test_images, preprocessing.evaluation())
batches = ClassBalancedBatches(splits.train.labels, classes_per_batch=10, images_per_class=4, seed=0)
loader = DataLoader(train, batch_sampler=batches)


def make_network() -> torch.nn.Module:
    """The same at each call."""
    torch.manual_seed(0)
    return build_model(ModelConfig("convnet", embedding_size=32, width=12, in_channels=1))


# %% [markdown]
# ## The loop
#
# The proxies are parameters of the loss. Pass them to the optimiser, with a learning rate that is at least ten times
# that of the network. If you forget this, the loss warns.


# %%
def train_with(loss: ProxyLoss, epochs: int = 4) -> torch.nn.Module:
    """A network that is trained with the loss, whose proxies are trained, too."""
    network = make_network()
    groups = [{"params": network.parameters()}, {"params": loss.parameters(), "lr": 3e-2}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    for epoch in range(epochs):
        batches.set_epoch(epoch)  # each loss is trained with the same batches
        for images, labels in loader:
            value = loss(network(images), labels)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    return network


def evaluate(network: torch.nn.Module) -> str:
    """Recall@1 and MAP@R on the test classes."""
    embeddings, _ = embed_dataset(network, test)
    found = retrieval_metrics(embeddings, splits.test_images.labels, recall_at=(1,))
    low, high = found.intervals()["recall@1"].low, found.intervals()["recall@1"].high
    return f"Recall@1 {found['recall@1']:.1%} (95% interval {low:.1%} to {high:.1%}), MAP@R {found['map@r']:.1%}"


classes = splits.train.num_classes
losses: list[ProxyLoss] = [
    NormalizedSoftmaxLoss(classes, 32, scale=16),
    ProxyAnchorLoss(classes, 32),
    AllPairMultiProxyAnchorLoss(classes, 32, proxies_per_class=2),
]
print("before training:", evaluate(make_network()))
for loss in losses:
    print(f"{type(loss).__name__}:", evaluate(train_with(loss)))

# %% [markdown]
# The intervals are wide: they say how much the values would vary with other test classes. Four epochs of one seed
# decide nothing about the losses; [the results](../results.md) compare them with five seeds each, tuned with the same
# budget.
#
# ## Several losses at once
#
# The sum of two losses is a loss, and both may have proxies of their own. Softmax-type losses also return per-sample
# losses, and take weights: here, classes with fewer images would count for more.

# %%
network, softmax, anchor = make_network(), losses[0], losses[1]
images, labels = next(iter(loader))
embeddings = network(images)
print("sum of two:", f"{(softmax(embeddings, labels) + 0.5 * anchor(embeddings, labels)).item():.2f}")
print("values per sample:", softmax(embeddings, labels, reduction="none").shape)
weights = class_balanced_weights(splits.train.labels.bincount(), beta=0.99)[labels]
print("weighted:", f"{softmax(embeddings, labels, weights=weights).item():.2f}")

# %% [markdown]
# ## What a loss pulls and pushes
#
# The *force* on an embedding is the negative gradient of the loss. In two dimensions, it can be drawn. Each arrow is
# the force on an embedding of class ★ at this point of the circle. The proxies of four other classes are ✖.

# %%
torch.manual_seed(1)
axes = plot_gradient_field(NormalizedSoftmaxLoss(5, 2, scale=8.0), label=0)
axes.figure.savefig(folder / "forces.png", dpi=80)
Image.open(
    folder / "forces.png"
)  # The force on an embedding at each place of a circle, towards its proxy and away from others.

# %% [markdown]
# The softmax loss has its minimum not at the proxy, but at a small distance from it, away from the mean of the other
# proxies. `squared_gaps` computes the square of this distance for each class. The nearer the mean of all proxies is to
# 0, the smaller is the gap. The regulariser `MeanProxyNorm` pushes all proxies against the direction of their mean.
# Regularisers are arguments of every proxy loss.

# %%
for regularizers in ((), (MeanProxyNorm(weight=5.0),)):
    torch.manual_seed(0)
    loss = NormalizedSoftmaxLoss(classes, 32, scale=16, regularizers=regularizers)
    network = train_with(loss, epochs=2)
    proxies = torch.nn.functional.normalize(loss.proxies[:, 0].detach())
    print(f"{'with' if regularizers else 'without'} the regulariser:")
    print(
        f"  length of the mean proxy {proxies.mean(0).norm():.3f}, mean gap {squared_gaps(proxies).sqrt().mean():.3f}"
    )

# %% [markdown]
# [The guide on extending](../extending.md) shows a loss, a regulariser and a sampler of your own; [the overview of the
# losses](../losses/README.md) helps to choose a loss. The page of each loss has its formula and a figure of its forces.
