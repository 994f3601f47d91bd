"""Faces to train on and pairs of faces to verify: record files and packs of insightface, folders, LFW."""
