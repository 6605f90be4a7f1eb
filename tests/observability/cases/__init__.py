"""When each alert fires and when not: series as promtool reads them, and what is to come of them.

Most have one value a minute: `0+5x60` grows by 5 for an hour, `_x5` is no sample.
"""
