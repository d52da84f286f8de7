"""Inference engines: one streaming, cancellable protocol and what implements it."""
