"""From two applied Terraform roots to a serving cluster, and back to nothing.

`python3 -m terraform.bootstrap up`, and `down`.

It needs Python's standard library, and terraform, aws, kubectl and helm on PATH. Running it again does no harm.
"""
