"""Starting one program on several machines, and recognizing who started this one."""
