"""Reports: runs as tables, files, plots and one page, the same bytes for the same runs."""
