"""Worker processes: started, watched and ended; what is sent to them and read from them."""
