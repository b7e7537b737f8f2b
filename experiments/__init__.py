"""Benchmarks and experiments on the real engine and router."""
