"""The built-in data sets, one file each, and how their files are found or fetched."""
