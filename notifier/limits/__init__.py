"""The limiter: exact over any number of processes, and mostly decided in the process itself."""
