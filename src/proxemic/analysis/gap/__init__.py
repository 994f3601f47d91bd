"""How far the minimiser of the softmax loss of a class lies from its proxy: bounds, minimisers and plots."""
