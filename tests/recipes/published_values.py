"""Published hyper-parameters, copied from the papers and their authors' code independently of the recipes.

Keys are as in a recipe's full text, without ``init_args``; a class is given by its name. ``falls`` has the factor of
all rates, and the epochs, counted from 1, that begin with it; ``mean proxy`` is the weight of that regulariser.
"""

from typing import Any

REALITY = {
    "cub": ["contrastive", "cosface", "arcface", "proxy-anchor", "proxy-nca-plus-plus", "hist", "warped-softmax"],
    "cars": [
        "multi-similarity",
        "cosface",
        "soft-triple",
        "proxy-anchor",
        "proxy-nca-plus-plus",
        "hist",
        "warped-softmax",
    ],
    "sop": ["proxy-nca", "softmax", "arcface", "proxy-anchor", "proxy-nca-plus-plus", "warped-softmax"],
}


def every(epochs: int, last: int, after: int = 0) -> list[int]:
    return list(range(after + epochs + 1, last + after + 1, epochs))


RESNET = {"model.backbone": "resnet50.tv_in1k"}
INCEPTION = {"model.backbone": "bn_inception"}
SGD = {
    "optim.optimizer": "SGD",
    "optim.optimizer.momentum": 0.9,
    "optim.optimizer.nesterov": True,
    "optim.optimizer.weight_decay": 5e-4,
}
MEAN_PROXY = {
    **RESNET,
    **SGD,
    "model.head": "none",
    "model.embedding_size": 2048,
    "loss": "NormalizedSoftmaxLoss",
    "loss.init": "proxemic.losses.initialization.kaiming_normal",
    "optim.lr": 1e-3,
    "optim.loss_lr": 1e-3,
    "training.epochs": 20,
    "falls": (0.1, [11]),
    "images.size": 224,
    "images.resize": 256,
    # "We centercroped images with size 224×224", "results are maintained after 20-epochs", all classes train.
    "augment.random_resized_crop": None,
    "augment.random_crop": False,
    "augment.horizontal_flip": 0,
    "data.validation_fraction": 0,
    "evaluation.select_on": "last",
}
AUGMENTED = {
    "augment.random_resized_crop": [0.08, 1.0],
    "augment.horizontal_flip": 0.5,
    "data.validation_fraction": 0.5,
    "evaluation.select_on": "validation",
}
MPA = {
    **INCEPTION,
    "model.pooling": "cubic-gem",
    "model.embedding_size": 512,
    "model.normalize": True,
    "batches.images_per_class": None,
    "loss.alpha": 32,
    "loss.margin": 0.1,
    "loss.gamma": 0.1,
    "loss.center_weight": 0.2,
    "optim.optimizer": "AdamW",
    "optim.lr": 1e-4,
    "optim.loss_lr": 1e-2,
    "images.size": 224,
    "images.resize": [256, 256],
}
MPA_ON = {
    "cub": {"batches.size": 180, "loss.proxies_per_class": 10, "training.epochs": 60, "falls": (0.5, every(20, 60))},
    "cars": {"batches.size": 64, "loss.proxies_per_class": 10, "training.epochs": 60, "falls": (0.5, every(20, 60))},
    "sop": {"batches.size": 32, "loss.proxies_per_class": 2, "training.epochs": 100, "falls": (0.5, every(20, 100))},
}
WARPED = {
    **RESNET,
    "model.pooling": "avg+max",
    "model.layer_norm": True,
    "model.head": "linear",
    "model.head_init": "kaiming_normal",
    "model.embedding_size": 512,
    "model.normalize": False,
    "optim.optimizer": "Adam",
    "optim.optimizer.eps": 1.0,
    "optim.optimizer.weight_decay": 1e-7,
    "optim.clip_value": 10,
    "evaluation.distance": "euclidean",
    "images.size": 224,
    "images.resize": [256, 256],
    "loss": "WarpedSoftmaxLoss",
    "falls": (1, []),
}


def two_phases(
    batch: int, classes: int, rates: str, epochs: tuple[int, int], warp: str, scale: float
) -> dict[str, Any]:
    """Return both phases from ``rates`` and ``warp`` as the table prints them: T, α, k1, k2 of the first → second."""
    first, second = ([float(word) for word in side.split()] for side in warp.split("→"))
    before, after = ([float(word) for word in side.split("/")] for side in rates.split("→"))
    names = ["temperature", "alpha", "k1", "k2"]
    values: dict[str, Any] = {
        "batches.size": batch,
        "batches.images_per_class": batch // classes,
        "training.epochs": epochs[0],
        "second_phase.epochs": epochs[1],
    }
    for place, lrs, numbers in (("", before, first), ("second_phase.", after, second)):
        values |= {f"{place}optim.lr": lrs[0], f"{place}optim.loss_lr": lrs[1]}
        values |= {f"{place}loss.{name}": number for name, number in zip(names, numbers, strict=True)}
        values |= {f"{place}loss.delta_scale": scale}
    return WARPED | values


PROXY_ANCHOR = {
    "model.pooling": "avg+max",
    "model.embedding_size": 512,
    "model.normalize": True,
    "batches.images_per_class": None,
    "loss": "ProxyAnchorLoss",
    "loss.alpha": 32,
    "loss.margin": 0.1,
    "optim.optimizer": "AdamW",
    "optim.optimizer.weight_decay": 1e-4,
    "optim.clip_value": 10,
}
SMALL = {"optim.lr": 1e-4, "optim.loss_lr": 1e-2, "model.freeze_batch_norm": True, "training.epochs": 60}
LARGE = {"optim.lr": 6e-4, "optim.loss_lr": 6e-2, "model.freeze_batch_norm": False, "training.epochs": 60}
PROXY_ANCHOR_R50 = PROXY_ANCHOR | RESNET | SMALL | {"batches.size": 120, "training.warmup_epochs": 5}
PROXY_ANCHOR_BN = PROXY_ANCHOR | INCEPTION | {"batches.size": 180, "training.warmup_epochs": 1}
NCA = {
    **RESNET,
    "model.pooling": "max",
    "model.layer_norm": True,
    "model.embedding_size": 2048,
    "loss": "ProxyNCAPlusPlusLoss",
    "loss.temperature": 1 / 9,
    "loss.init": "proxemic.losses.initialization.eighth_normal",
    "optim.optimizer": "Adam",
    "optim.optimizer.eps": 1.0,
    "optim.optimizer.weight_decay": 0,
    "optim.clip_value": 10,
    "optim.schedule": "ReduceLROnPlateau",
    "optim.schedule.patience": 4,
    "optim.schedule.factor": 0.1,
    "training.warmup_epochs": 5,
    "images.size": 256,
    "images.resize": 288,
}
# Warm-up comes before the epochs of ProxyNCA++ and HIST, and is the first of Proxy-Anchor's.
NCA_SMALL = {"batches.size": 32, "batches.images_per_class": 4, "optim.lr": 4e-3, "training.epochs": 5 + 40}
NCA_LARGE = {"batches.size": 192, "batches.images_per_class": 3, "optim.lr": 2.4e-2, "training.epochs": 5 + 80}
N_SOFTMAX = {
    **RESNET,
    "images.resize": [256, 256],
    "augment.random_crop": True,
    "model.pooling": "avg",
    "model.layer_norm": True,
    "model.embedding_size": 512,
    "batches.size": 75,
    "loss": "NormalizedSoftmaxLoss",
    "loss.scale": 1 / 0.05,
    "optim.optimizer": "SGD",
    "optim.optimizer.momentum": 0.9,
    "optim.optimizer.weight_decay": 1e-4,
    "training.warmup_epochs": 1,
    "training.epochs": 1 + 2 * 15,
    "falls": (0.1, [1 + 15 + 1]),
}
N_SOFTMAX_ON = {
    "cub": {"optim.lr": 1e-3, "optim.loss_lr": 1e-3, "batches.images_per_class": 25},
    "cars": {"optim.lr": 1e-2, "optim.loss_lr": 1e-2, "batches.images_per_class": 25},
    "sop": {"optim.lr": 1e-2, "optim.loss_lr": 1e-2, "batches.images_per_class": 5},
}
MARGIN = {
    **RESNET,
    "model.embedding_size": 128,
    "model.normalize": True,
    "batches.size": 70,
    "batches.images_per_class": 5,
    "loss.loss": "MarginLoss",
    "loss.loss.margin": 0.2,
    "loss.loss.beta": 1.2,
    "loss.loss.nu": 0,
    "loss.loss.learn_beta": True,
    "loss.miner": "DistanceWeightedMiner",
    "optim.optimizer": "Adam",
    "optim.optimizer.weight_decay": 1e-4,
    "optim.head_lr": 1e-4,
    "optim.lr": 0.01 * 1e-4,
    "training.epochs": round(20 * 200 * 70 / 5864),
    "falls": (0.5, [round(steps * 200 * 70 / 5864) + 1 for steps in (12, 14, 16, 18)]),
}
HIST = {
    **RESNET,
    "model.pooling": "avg+max",
    "model.head": "linear+layer_norm",
    "model.embedding_size": 512,
    "batches.size": 32,
    "batches.images_per_class": None,
    "loss": "HISTLoss",
    "loss.hidden": 512,
    "optim.optimizer": "Adam",
    "training.warmup_epochs": 1,
}


def hist(decay: float, rates: str, epochs: int, fall: int, tau: float, alpha: float, *, frozen: bool) -> dict[str, Any]:
    lr, loss_lr, graph_lr = (float(rate) for rate in rates.split("/"))
    return HIST | {
        "model.freeze_batch_norm": frozen,
        "optim.optimizer.weight_decay": decay,
        "optim.lr": lr,
        "optim.loss_lr": loss_lr,
        "optim.graph_lr": graph_lr,
        "training.epochs": 1 + epochs,
        "falls": (0.5, every(fall, epochs, after=1)),
        "loss.tau": tau,
        "loss.alpha": alpha,
    }


WARP_CUB = two_phases(64, 8, "0.01/1.0→0.001/5e-4", (50, 30), "4.525 28.40 .93 1.15→1 24.68 .95 1.20", 1.30)
WARP_CARS = two_phases(64, 4, "0.01/1.0→0.001/5e-4", (100, 50), "5 30.15 .80 1.15→1 23.25 .50 1.55", 1.50)
WARP_SOP = two_phases(
    192, 64, "0.024/225→0.0075/0.001", (80, 20), "3.7442 13.02 .8563 1.1181→1 5.84 .8024 1.6175", 1.348
) | {"model.head_init": None}
FACES = {
    "data": "RecordFaces",
    "images.size": 112,
    "images.mean": [0.5, 0.5, 0.5],
    "images.std": [0.5, 0.5, 0.5],
    "augment.horizontal_flip": 0.5,
    "batches.size": 1024,
    "model.backbone": "iresnet100",
    "model.head": "none",
    "model.embedding_size": 512,
    "optim.optimizer": "SGD",
    "optim.optimizer.momentum": 0.9,
    "optim.schedule": "PolynomialDecay",
    "optim.schedule.power": 2,
    "optim.clip_backbone_norm": 5,
    "training.epochs": 25,
    "evaluation.select_on": "last",
}
MARGIN_FACES = FACES | {
    "loss.scale": 64,
    "optim.lr": 0.1,
    "optim.loss_lr": 0.1,
    "optim.optimizer.weight_decay": 5e-4,
    "optim.loss_weight_decay": None,
}
EUCLIDEAN_FACES = FACES | {
    "model.normalize": False,
    "evaluation.distance": "euclidean",
    "optim.optimizer.weight_decay": 7.15e-5,
    "optim.loss_weight_decay": 1.275e-6,
    "optim.lr": 0.2,
    "optim.loss_lr": 10,
    "second_phase.epochs": 5,
    # The rates of one curve over all 25 epochs, of which 5 are left.
    "second_phase.optim.lr": 0.2 * (5 / 25) ** 2,
    "second_phase.optim.loss_lr": 10 * (5 / 25) ** 2,
    "loss.temperature": 3.15,
    "second_phase.loss.temperature": 1,
}
ON_TEST = {"data.validation_fraction": 0, "evaluation.select_on": "test"}
PUBLISHED: dict[str, dict[str, Any]] = {
    "cub/softmax": MEAN_PROXY,
    "cub/softmax-mean-proxy": MEAN_PROXY | {"mean proxy": 1.0},
    "cub/softmax-augmented": MEAN_PROXY | AUGMENTED,
    "cub/softmax-mean-proxy-augmented": MEAN_PROXY | AUGMENTED | {"mean proxy": 1.0},
    "cars/softmax": MEAN_PROXY,
    "cars/softmax-mean-proxy": MEAN_PROXY | {"mean proxy": 0.01},
    **{f"{on}/mpa": MPA | own | {"loss": "MultiProxyAnchorLoss"} for on, own in MPA_ON.items()},
    **{f"{on}/mpa-dw": MPA | own | {"loss": "DataWiseMultiProxyAnchorLoss"} for on, own in MPA_ON.items()},
    **{f"{on}/mpa-ap": MPA | own | {"loss": "AllPairMultiProxyAnchorLoss"} for on, own in MPA_ON.items()},
    **{
        f"{on}/mpa-k{k}": MPA | MPA_ON[on] | {"loss": "MultiProxyAnchorLoss", "loss.proxies_per_class": k}
        for on in ("cub", "cars")
        for k in (1, 4, 8, 12, 16)
    },
    "cub/warped-softmax": WARP_CUB,
    "cars/warped-softmax": WARP_CARS,
    "sop/warped-softmax": WARP_SOP,
    "cub/warped-softmax-on-test": WARP_CUB | ON_TEST,
    "cub/warped-softmax-large-crop": WARP_CUB | ON_TEST | {"images.size": 256, "images.resize": [288, 288]},
    "sop/warped-softmax-all-classes": WARP_SOP | {"data.validation_fraction": 0, "evaluation.select_on": "last"},
    "cub/euclidean-softmax": {
        key: value for key, value in WARP_CUB.items() if not key.endswith(("alpha", "k1", "k2", "scale"))
    }
    | {"loss": "EuclideanSoftmaxLoss", "second_phase.loss": "EuclideanSoftmaxLoss"},
    "cub/proxy-anchor": PROXY_ANCHOR_R50 | {"falls": (0.5, every(5, 60))},
    "cars/proxy-anchor": PROXY_ANCHOR_R50 | {"falls": (0.5, every(10, 60))},
    "cub/proxy-anchor-bn-inception": PROXY_ANCHOR_BN | SMALL | {"falls": (0.5, every(10, 60))},
    "cars/proxy-anchor-bn-inception": PROXY_ANCHOR_BN | SMALL | {"falls": (0.5, every(20, 60))},
    "sop/proxy-anchor-bn-inception": PROXY_ANCHOR_BN | LARGE | {"falls": (0.25, every(20, 60))},
    "in-shop/proxy-anchor-bn-inception": PROXY_ANCHOR_BN | LARGE | {"falls": (0.25, every(20, 60))},
    "cub/proxy-nca-plus-plus-512": {"images.size": 224, "images.resize": [256, 256], "model.pooling": "avg+max"},
    **{f"{on}/n-softmax": N_SOFTMAX | own for on, own in N_SOFTMAX_ON.items()},
    "cub/circle": {**INCEPTION, "model.embedding_size": 512, "loss.loss.m": 0.4, "loss.loss.gamma": 80},
    "cub/margin": MARGIN,
    "cars/margin": MARGIN,
    "fashion-mnist/warped-softmax": {"data.validation_fraction": 0, "evaluation.select_on": "last"},
    "cub/proxy-nca-plus-plus": NCA | NCA_SMALL | {"optim.loss_lr": 400},
    "cars/proxy-nca-plus-plus": NCA | NCA_SMALL | {"optim.loss_lr": 400},
    "sop/proxy-nca-plus-plus": NCA | NCA_LARGE | {"optim.loss_lr": 240},
    "in-shop/proxy-nca-plus-plus": NCA | NCA_LARGE | {"optim.loss_lr": 2400},
    "cub/hist": hist(5e-5, "1.2e-4/0.1/6e-4", 40, 5, 32, 1.1, frozen=True),
    "cars/hist": hist(1e-4, "1e-4/0.1/1e-3", 50, 10, 32, 0.9, frozen=True),
    "sop/hist": hist(1e-4, "1e-4/0.01/1e-3", 60, 10, 16, 2, frozen=False),
    "cars/soft-triple": {
        **INCEPTION,
        "model.embedding_size": 64,
        "model.normalize": True,
        "model.freeze_batch_norm": True,
        "batches.size": 32,
        "loss": "SoftTripleLoss",
        "loss.proxies_per_class": 10,
        "optim.optimizer": "Adam",
        "optim.optimizer.eps": 0.01,
        "optim.optimizer.weight_decay": 1e-4,
        "optim.lr": 1e-4,
        "optim.loss_lr": 1e-2,
        "training.epochs": 50,
        "falls": (0.1, [20, 40]),
    },
    "faces/softmax": MARGIN_FACES | {"loss": "NormalizedSoftmaxLoss"},
    "faces/sphereface": MARGIN_FACES | {"loss": "SphereFaceLoss", "loss.margin": 4, "loss.scale": 30},
    "faces/cosface": MARGIN_FACES | {"loss": "CosFaceLoss", "loss.margin": 0.35},
    "faces/arcface": MARGIN_FACES | {"loss": "ArcFaceLoss", "loss.margin": 0.5},
    "faces/magface": MARGIN_FACES
    | {
        "loss": "MagFaceLoss",
        "model.normalize": False,
        "loss.margin_range": [0.45, 0.8],
        "loss.norm_range": [10, 110],
        "loss.norm_weight": 35,
    },
    "faces/adaface": MARGIN_FACES
    | {
        "loss": "AdaFaceLoss",
        "model.normalize": False,
        "loss.margin": 0.4,
        "loss.concentration": 0.333,
        "loss.momentum": 0.01,
    },
    "faces/curricularface": MARGIN_FACES | {"loss": "CurricularFaceLoss", "loss.margin": 0.5, "loss.momentum": 0.01},
    "faces/elasticface": MARGIN_FACES
    | {"loss": "ElasticFaceLoss", "loss.margin": 0.5, "loss.deviation": 0.05, "loss.form": "arc"},
    "faces/euclidean-softmax": EUCLIDEAN_FACES | {"loss": "EuclideanSoftmaxLoss"},
    "faces/warped-softmax": EUCLIDEAN_FACES
    | {
        "loss": "WarpedSoftmaxLoss",
        "loss.delta_scale": 1,
        "loss.alpha": 15.75,
        "loss.k1": 0.3,
        "loss.k2": 1.075,
        "second_phase.loss.alpha": 12.25,
        "second_phase.loss.k1": 0.2,
        "second_phase.loss.k2": 1.03,
    },
    **{
        f"{on}/reality-check/{name}": {
            "optim.optimizer": "RMSprop",
            "model.backbone": "bn_inception" if on == "sop" else "resnet50.tv_in1k",
            "model.embedding_size": 128,
            "model.freeze_batch_norm": True,
            "evaluation.metric": "map@r",
        }
        for on, names in REALITY.items()
        for name in names
    },
}
