"""Gates: rules on runs, their verdicts with a known error rate, baselines, and rules from healthy runs."""
