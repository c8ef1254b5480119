"""The live page: a local server that shows the runs of a folder as they train."""
