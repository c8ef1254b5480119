"""Virtual hardware and its clock."""
