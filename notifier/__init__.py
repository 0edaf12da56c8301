"""Notifier."""
