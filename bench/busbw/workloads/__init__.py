"""Training workloads: models and samples as rows, each with its source."""
