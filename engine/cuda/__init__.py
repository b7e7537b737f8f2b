"""What a replica on a CUDA device runs: Triton kernels, CUDA graphs, choices on the device."""
