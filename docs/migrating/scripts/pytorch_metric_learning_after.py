"""The same with proxemic."""

import torch
from pytorch_metric_learning import losses, miners
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from proxemic.losses import PairwiseLoss, ProxyAnchorLoss
from proxemic.metrics import nearest_neighbours, retrieval_metrics

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
seen = labels < 5
train, test = TensorDataset(images[seen], labels[seen]), TensorDataset(images[~seen], labels[~seen])
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))

# Training with proxies, and with pairs that a miner chooses.
proxy_loss = ProxyAnchorLoss(num_classes=5, embedding_size=16, margin=0.1, alpha=32)
pair_loss = PairwiseLoss(
    num_classes=5,
    embedding_size=16,
    loss=losses.MultiSimilarityLoss(alpha=2, beta=50, base=0.5),
    miner=miners.MultiSimilarityMiner(epsilon=0.1),
)
optimizer = torch.optim.Adam(
    [{"params": model.parameters(), "lr": 1e-3}, {"params": proxy_loss.parameters(), "lr": 1e-2}]
)
for epoch in range(3):
    total = 0.0
    for batch, batch_labels in DataLoader(train, batch_size=64, shuffle=True, drop_last=True):
        embeddings = model(batch)
        loss = proxy_loss(embeddings, batch_labels) + 0.1 * pair_loss(embeddings, batch_labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"loss of epoch {epoch}: {total / (len(train) // 64):.4f}")

# Evaluation on the digits that were not trained on.
with torch.no_grad():
    embeddings = model(test.tensors[0])
accuracy = retrieval_metrics(embeddings, test.tensors[1], recall_at=(1,))
print(f"Recall@1: {accuracy['recall@1']:.4f}")
print(f"R-Precision: {accuracy['r_precision']:.4f}")
print(f"MAP@R: {accuracy['map@r']:.4f}")

# Search: the nearest of all others for ten queries, and whether two images show the same digit.
found_distances, found = nearest_neighbours(embeddings[:10], embeddings[10:], k=3)
print("nearest:", found.tolist())
ten = nn.functional.normalize(embeddings[:10])
matches = ten @ ten.T >= 0.8
print("pairs above 0.8:", int(matches.sum()))
