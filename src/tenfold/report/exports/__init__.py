"""The numbers of runs for other programs: CSV, JSON, Parquet."""
