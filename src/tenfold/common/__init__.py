"""Small tools that every room may use: registries, files, imports."""
