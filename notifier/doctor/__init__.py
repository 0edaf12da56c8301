"""What `notifier doctor` looks at. Every check is a function that yields findings; none changes anything."""
