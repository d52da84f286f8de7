"""What `mosaic batch` is made of: the lines of its inputs, its runs, its results, and its progress."""
