"""Search for hyper-parameters on classes held out from training, by processes that share an Optuna study."""
