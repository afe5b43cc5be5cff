"""All runs of a results folder together: an index of their kept summaries, views for SQL, and what changed when."""
