"""What makes and checks the charts: generated parts of soloist/, and the tools that render it."""
