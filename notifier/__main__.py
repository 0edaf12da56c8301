"""`python -m notifier` is `notifier`."""

from notifier.cli import main

main()
