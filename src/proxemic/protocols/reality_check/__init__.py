"""The reality check: every loss tuned alike by cross-validation, then judged on unseen classes, many times."""
