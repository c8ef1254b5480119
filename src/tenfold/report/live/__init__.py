"""What is shown while something runs."""
