"""What a run leaves behind: JSON records, tables, geometric means and plots."""
