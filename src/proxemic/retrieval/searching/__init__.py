"""Questions to a gallery and their answers: search, recognition, thresholds and their calibration, explanations."""

__all__: list[str] = []
