"""Run directories; embeddings by trained networks, and their evaluation.

`directory` names the files of a run, `embed` and `faces` compute embeddings of images, `evaluate` computes metrics of
embeddings, and `processes` connects the processes that torchrun or srun has started.
"""

__all__: list[str] = []
