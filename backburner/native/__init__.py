"""Small C for the CPU, opened with ctypes; everything in it has a twin in numpy or in MLX's ops."""
