"""Data in files: tables, arrays and folders of images."""
