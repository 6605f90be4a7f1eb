"""Soloist's public contract, generated from the `.proto` files beside it."""
