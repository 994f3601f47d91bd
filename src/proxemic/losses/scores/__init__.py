"""The core of every proxy loss: similarities, pooling, the streamed log-sum-exp, regularisers, class sampling."""
