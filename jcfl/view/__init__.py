"""What people look at: plots, reports, tables of pieces."""
