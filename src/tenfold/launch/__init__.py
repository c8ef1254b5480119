"""Starting one program on several machines, and detecting what started this one."""
