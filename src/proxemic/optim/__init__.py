"""What the training of proxies asks of optimisers: sparse steps, schedules, clipping. Imports torch alone."""
