"""The wire: frames and messages without IO, and links over TCP and memory."""
