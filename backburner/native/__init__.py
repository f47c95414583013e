"""Small C for the CPU, opened with ctypes; everything in it has a numpy twin."""
