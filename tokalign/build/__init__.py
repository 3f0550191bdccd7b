"""Offline: iterables in, tables out. Never imports `tokalign.runtime`; they meet in bundles."""
