"""An embedding of handwritten digits with Open Metric Learning: trained on 0 to 4, judged and searched on 5 to 9."""

import pandas as pd
import torch
from oml.datasets import ImageLabeledDataset, ImageQueryGalleryLabeledDataset
from oml.inference import inference
from oml.losses import ArcFaceLoss, TripletLossWithMiner
from oml.metrics import calc_retrieval_metrics_rr
from oml.miners import HardTripletsMiner
from oml.retrieval import RetrievalResults
from oml.transforms.images.torchvision import get_normalisation_torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
df = pd.read_csv("df.csv")
transform = get_normalisation_torch()
train = ImageLabeledDataset(df[df["split"] == "train"].reset_index(drop=True), transform=transform)
test = ImageQueryGalleryLabeledDataset(df[df["split"] == "validation"].reset_index(drop=True), transform=transform)
model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 16))

arcface = ArcFaceLoss(in_features=16, num_classes=5, m=0.3, s=16)
triplets = TripletLossWithMiner(margin=0.2, miner=HardTripletsMiner())
optimizer = torch.optim.Adam([{"params": model.parameters(), "lr": 1e-3}, {"params": arcface.parameters(), "lr": 1e-2}])
for epoch in range(3):
    total, batches = 0.0, DataLoader(train, batch_size=64, shuffle=True, drop_last=True)
    for batch in batches:
        embeddings = model(batch["input_tensors"])
        loss = arcface(embeddings, batch["labels"]) + triplets(embeddings, batch["labels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"loss of epoch {epoch}: {total / len(batches):.4f}")

embeddings = inference(model.eval(), test, batch_size=64)
results = RetrievalResults.from_embeddings(embeddings, test, n_items=10)
metrics = calc_retrieval_metrics_rr(results, cmc_top_k=(1, 5), precision_top_k=(5,), map_top_k=(5,), verbose=False)
print(f"Recall@1: {metrics['cmc'][1]:.4f}")
print(f"Recall@5: {metrics['cmc'][5]:.4f}")
print(f"Precision@5: {metrics['precision'][5]:.4f}")
print(f"MAP@5 over the hits: {metrics['map'][5]:.4f}")
print("nearest:", [ids[:3].tolist() for ids in results.retrieved_ids[:10]])
