"""Workers that are lost and replaced while the others train."""
