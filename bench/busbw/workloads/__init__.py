"""What is trained: models and samples as rows, each with its source."""
