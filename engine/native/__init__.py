"""Kernels in C++ for processors with AVX-512, and AMX: a whole step's layers in one call."""
