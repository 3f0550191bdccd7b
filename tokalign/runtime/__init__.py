"""Decoding: bundles and models in, events out."""
