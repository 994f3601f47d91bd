"""What the gradient of a proxy loss depends on: measured properties of every loss, gradient fields, plots."""
