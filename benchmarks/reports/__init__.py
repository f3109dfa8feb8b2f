"""Report the results of a run: JSON records, tables, geometric means and plots."""
