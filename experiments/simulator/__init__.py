"""The simulator: the real scheduler, router and autoscaler under a clock that is only counted."""
