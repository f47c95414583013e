"""Decides from measured figures what runs where. Pure arithmetic; imports no runtime module."""
