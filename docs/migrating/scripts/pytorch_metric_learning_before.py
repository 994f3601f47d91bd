"""An embedding of handwritten digits with pytorch-metric-learning: trained on 0 to 4, judged and searched on 5 to 9."""

import torch
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import InferenceModel
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
images, labels = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
seen = labels < 5
train, test = TensorDataset(images[seen], labels[seen]), TensorDataset(images[~seen], labels[~seen])
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))

# Training with proxies, and with pairs that a miner chooses.
proxy_loss = losses.ProxyAnchorLoss(num_classes=5, embedding_size=16, margin=0.1, alpha=32)
pair_loss, miner = losses.MultiSimilarityLoss(alpha=2, beta=50, base=0.5), miners.MultiSimilarityMiner(epsilon=0.1)
optimizer = torch.optim.Adam(
    [{"params": model.parameters(), "lr": 1e-3}, {"params": proxy_loss.parameters(), "lr": 1e-2}]
)
for epoch in range(3):
    total = 0.0
    for batch, batch_labels in DataLoader(train, batch_size=64, shuffle=True, drop_last=True):
        embeddings = model(batch)
        pairs = miner(embeddings, batch_labels)
        loss = proxy_loss(embeddings, batch_labels) + 0.1 * pair_loss(embeddings, batch_labels, pairs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"loss of epoch {epoch}: {total / (len(train) // 64):.4f}")

# Evaluation on the digits that were not trained on.
with torch.no_grad():
    embeddings = nn.functional.normalize(model(test.tensors[0]))
calculator = AccuracyCalculator(
    include=("precision_at_1", "r_precision", "mean_average_precision_at_r"), k="max_bin_count"
)
accuracy = calculator.get_accuracy(embeddings, test.tensors[1])
print(f"Recall@1: {accuracy['precision_at_1']:.4f}")
print(f"R-Precision: {accuracy['r_precision']:.4f}")
print(f"MAP@R: {accuracy['mean_average_precision_at_r']:.4f}")

# Search: the nearest of all others for ten queries, and whether two images show the same digit.
inference = InferenceModel(model, data_device="cpu")
inference.train_knn(test.tensors[0][10:])
found_distances, found = inference.get_nearest_neighbors(test.tensors[0][:10], k=3)
print("nearest:", found.tolist())
matches = inference.match_finder.get_matching_pairs(embeddings[:10], threshold=0.8)
print("pairs above 0.8:", int(matches.sum()))
