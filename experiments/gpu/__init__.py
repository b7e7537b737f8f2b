"""What the CUDA path does on a machine with a GPU, and the same in Triton's interpreter."""
