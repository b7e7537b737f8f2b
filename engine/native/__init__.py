"""Kernels in C++ for processors with AVX-512: a whole step's layers in one call."""
