"""Measuring the engine: shapes as data, the device's read bandwidth, and what a decode step costs."""
