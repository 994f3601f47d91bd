"""Tiny networks for texts and images, of the real classes, with a tokenizer, as their folders on the hub are."""

import json
from pathlib import Path
from typing import Any

import torch

SIDE, LENGTH = 16, 8
WORDS = ["<pad>", "<s>", "</s>", "<unk>", "a", "red", "blue", "car", "hat"]


def write_towers(folder: Path, kind: str = "clip", *, tokenizer_class: str = "PreTrainedTokenizerFast") -> Path:
    import transformers  # takes seconds: not where tests are only collected
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    small: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    small["intermediate_size"] = 32
    vision = small | {"image_size": SIDE, "patch_size": 8}
    text = small | {"vocab_size": len(WORDS), "max_position_embeddings": LENGTH, "pad_token_id": 0}
    text |= {"bos_token_id": 1, "eos_token_id": 2}
    config = {
        "clip": lambda: transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=12),
        "siglip": lambda: transformers.SiglipConfig(text_config=text | {"projection_size": 16}, vision_config=vision),
    }[kind]()
    torch.manual_seed(0)
    network = transformers.AutoModel.from_config(config)
    for parameter in network.parameters():  # also of those that are initially zero or one
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    network.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    ends = [("<s>", 1), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=ends)  # pyright: ignore
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": tokenizer_class, "pad_token": "<pad>", "model_max_length": LENGTH}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    prepared = {
        "image_processor_type": "SiglipImageProcessor",
        "do_normalize": True,
        "image_mean": [0.5] * 3,
        "image_std": [0.25] * 3,
        "size": {"height": SIDE, "width": SIDE},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(prepared))
    return folder
