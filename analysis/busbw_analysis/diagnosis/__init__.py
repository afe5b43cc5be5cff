"""Diagnosis: findings, verdicts, stragglers, slow links, comparison."""
