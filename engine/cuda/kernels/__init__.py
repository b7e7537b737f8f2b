"""Triton kernels.  Each row's bits depend on that row alone, whatever the launch."""
