"""Real servers from wheels, for `notifier up`, the demo and the tests: Valkey and PostgreSQL on the loopback address.

Needs the extra `embedded`; nothing here is imported by an app that only sends.
"""
