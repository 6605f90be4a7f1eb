#!/bin/sh
# Takes out of a Python environment what a server never opens, and compiles the rest once: nothing can be compiled later
# on a read-only disk. Usage: slim.sh ENVIRONMENT
set -eu
environment=$1
cd "$environment"/lib/python3*/site-packages

# For building extensions against these libraries.
rm -rf torch/include torch/share nvidia/*/include nvidia/cu*/include triton/backends/*/include
find . -name '*.a' -delete
find torch/bin -mindepth 1 ! -name torch_shm_manager -delete
# The Kubernetes client's twin for asyncio.
rm -rf kubernetes/aio
# Triton's parts for other makers' devices, and its tools for looking at machine code; what names a maker stays.
rm -rf triton/backends/amd/lib triton/backends/nvidia/bin/cuobjdump triton/backends/nvidia/bin/nvdisasm
# The tests that packages ship. Not numpy's, which its own code imports.
for package in llvmlite mpmath networkx numba runai_model_streamer runai_model_streamer_s3 sympy; do
    [ ! -d "$package" ] || find "$package" -type d -name tests -prune -exec rm -rf {} +
done
# botocore has a description of every service of AWS. One is called, and two give credentials.
find botocore/data -mindepth 1 -maxdepth 1 -type d ! -name s3 ! -name sts ! -name sso ! -name sso-oidc -exec rm -rf {} +

# All but torch's own tests, some of which are of other Pythons.
# Unchecked: the sources never change, and their times are no part of an image's content.
"$environment"/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash -x 'torch/testing/_internal/' . || {
    echo "slim.sh: a module cannot be compiled" >&2
    exit 1
}
