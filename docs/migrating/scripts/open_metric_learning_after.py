"""The same with proxemic, from the same table."""

from pathlib import Path

import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import TripletMarginLoss
from pytorch_metric_learning.miners import BatchHardMiner
from pytorch_metric_learning.reducers import MeanReducer
from torch import nn
from torch.utils.data import DataLoader

from proxemic.data import EmbeddingDataset, OwnImages, Preprocessing
from proxemic.losses import ArcFaceLoss, PairwiseLoss
from proxemic.losses.initialization import xavier_uniform
from proxemic.metrics import nearest_neighbours, retrieval_metrics
from proxemic.training import embed_dataset

torch.manual_seed(0)
splits = OwnImages(Path("df.csv"), validation_fraction=0).load()
transform = Preprocessing(size=8, resize=None).evaluation()
train, test = EmbeddingDataset(splits.train, transform), EmbeddingDataset(splits.test_images, transform)
model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 16))

arcface = ArcFaceLoss(num_classes=5, embedding_size=16, margin=0.3, scale=16, init=xavier_uniform)
euclidean = LpDistance(normalize_embeddings=False)
triplets = PairwiseLoss(
    num_classes=5,
    embedding_size=16,
    loss=TripletMarginLoss(margin=0.2, distance=euclidean, reducer=MeanReducer()),
    miner=BatchHardMiner(distance=euclidean),
)
optimizer = torch.optim.Adam([{"params": model.parameters(), "lr": 1e-3}, {"params": arcface.parameters(), "lr": 1e-2}])
for epoch in range(3):
    total, batches = 0.0, DataLoader(train, batch_size=64, shuffle=True, drop_last=True)
    for batch, labels in batches:
        embeddings = model(batch)
        loss = arcface(embeddings, labels) + triplets(embeddings, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"loss of epoch {epoch}: {total / len(batches):.4f}")

embeddings, labels = embed_dataset(model.eval(), test)[0], splits.test_images.labels
metrics = retrieval_metrics(
    embeddings, labels, distance="euclidean", recall_at=(1, 5), precision_at=(5,), map_at=(5,), map_divisors=("hits",)
)
print(f"Recall@1: {metrics['recall@1']:.4f}")
print(f"Recall@5: {metrics['recall@5']:.4f}")
print(f"Precision@5: {metrics['precision@5']:.4f}")
print(f"MAP@5 over the hits: {metrics['map_over_hits@5']:.4f}")
itself = torch.arange(10)
_, nearest = nearest_neighbours(embeddings[:10], embeddings, k=3, distance="euclidean", exclude=itself)
print("nearest:", nearest.tolist())
