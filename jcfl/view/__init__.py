"""What people look at: plots, reports, comparisons, tables of pieces."""
