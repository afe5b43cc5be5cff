"""The report: its document, sections, tables, plots and formats."""
