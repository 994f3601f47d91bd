"""Run directories, and what is done with a trained network: embedding and evaluation. Imports no Lightning.

`directory` names the files of a run, `embed` and `faces` turn images into embeddings, `evaluate` computes metrics of
these, and `processes` joins those that torchrun or srun has started.
"""

__all__: list[str] = []
