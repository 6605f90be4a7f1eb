"""Models that only transformers knows, played through the step contract: slower than native ones, and it is said.

Importing anything in this package imports transformers; nothing on the native path does.
"""
