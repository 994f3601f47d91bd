"""Networks from images `[B, C, H, W]` to a feature map `[B, num_features, h, w]`."""

__all__: list[str] = []
