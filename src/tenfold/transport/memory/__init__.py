"""Workers on one machine: memory that all of them map."""
