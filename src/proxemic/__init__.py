"""Proxy-based deep metric learning: train an embedding, judge it on unseen classes, understand why it works."""

__version__ = "0.1.0"
