"""A dashboard for Grafana, as its import takes it."""
