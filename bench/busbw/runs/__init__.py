"""What is to be measured, and what was: plans, cases, placements, records, run folders."""
