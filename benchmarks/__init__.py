"""Every number in the documents, with the command that makes it: `python -m benchmarks`."""
