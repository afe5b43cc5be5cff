"""Fits: estimators, validation and model selection."""
