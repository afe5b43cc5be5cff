"""Fits: estimators, validation and the choice between models."""
