"""Baked pages: old K and V as the constant weights of a Core ML model. Imports no runtime module."""
