"""Diagnosis: findings, verdicts, stragglers, slow links and comparison of runs."""
