"""Export trained models for other programs, as an ONNX file or a torch program that is verified on images.

`graphs` writes the file, also in int8, `parity` compares it with the model, `card` describes it, and
`alone` is the script that runs an ONNX file without torch and without this package.
"""

from proxemic.retrieval.exporting.export import Exported, export

__all__ = ["Exported", "export"]
