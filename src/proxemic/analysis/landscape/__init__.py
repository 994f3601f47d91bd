"""The loss of one embedding as a function of its place around the proxy of its class: values, minimum, plots."""
