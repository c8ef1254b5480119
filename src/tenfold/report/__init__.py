"""Everything a person sees, drawn from runs and their events: tables, progress, plots, pages, exports and traces."""
