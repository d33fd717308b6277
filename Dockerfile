# The server, the command line and the example models, as two images. docs/deploy.md says how to run them.
#
#   docker build --target cpu -t edgewise .
#   docker build --target cuda -t edgewise:cuda .     # for NVIDIA GPUs; serves on a CPU too
#
# An image holds programs, the shared libraries they load and nothing else of Debian: no shell, no package manager.
# deploy/collect-runtime.sh finds the libraries, so there is one list of packages: that of ./dev.

# A mirror's name, or a digest to pin: --build-arg BASE=debian@sha256:...
ARG BASE=debian:bookworm-slim

FROM $BASE AS build
WORKDIR /src
COPY . .
# Compile jobs; all cores where it is not given.
ARG JOBS
# The revision that is built, for the label and edgewise_build_info: git rev-parse --short HEAD.
ARG REVISION=unknown
RUN EDGEWISE_JOBS="${JOBS:-$(nproc)}" EDGEWISE_REVISION="$REVISION" ./dev build
RUN cp -r examples/models /models && chmod -R u=rwX,go=rX /models
RUN deploy/collect-runtime.sh /rootfs build/bin/edgewise-server build/bin/edgewise

# CUDA's compiler and cuBLAS from PyPI. Wheels have no links for linkers, and no lib64, where CMake looks.
FROM build AS build-cuda
ARG JOBS
ARG REVISION=unknown
# A mirror of PyPI: --build-arg PIP_INDEX_URL=https://...
ARG PIP_INDEX_URL
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-pip >/dev/null \
 && python3 -m pip install -q --no-cache-dir --no-deps --require-hashes --target /opt/wheels -r deploy/cuda-wheels.txt \
 && ln -s /opt/wheels/nvidia/cu13 /usr/local/cuda && cd /usr/local/cuda && ln -s lib lib64 \
 && ln -s libcublasLt.so.13 lib/libcublasLt.so && ln -s libcudart.so.13 lib/libcudart.so
RUN EDGEWISE_JOBS="${JOBS:-$(nproc)}" EDGEWISE_REVISION="$REVISION" ./dev build
# An installed module looks for libraries beside itself only.
RUN cmake --install build --component server --prefix /opt/edgewise \
 && LD_LIBRARY_PATH=/usr/local/cuda/lib deploy/collect-runtime.sh /rootfs-cuda build/bin/edgewise \
      /opt/edgewise/bin/* /opt/edgewise/lib/edgewise/*

# Both images say this of themselves.
FROM scratch AS settings
ARG REVISION=unknown
LABEL org.opencontainers.image.title="edgewise" \
      org.opencontainers.image.description="Inference server for Transformers with adaptive sparse attention" \
      org.opencontainers.image.revision="$REVISION"
ENV PATH=/usr/local/bin
USER 65532:65532
# HTTP; gRPC; /metrics and /healthz.
EXPOSE 8000 8001 8002
# SIGTERM drains: requests in flight are answered, for at most 25 s (--drain_timeout), then the exit code is 0. Behind a
# proxy that finds out by probes, --drain_delay keeps the port open before.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["edgewise", "health", "--timeout=3s"]
# A container has its own loopback, so the server must listen on all its addresses; which of them can be reached from
# outside is decided by what is published. Every flag can be given so (docker run -e), or after the image's name.
ENV EDGEWISE_MODEL_REPOSITORY=/models EDGEWISE_LISTEN=0.0.0.0:8001 EDGEWISE_HTTP_LISTEN=0.0.0.0:8000 \
    EDGEWISE_METRICS_LISTEN=0.0.0.0:8002 EDGEWISE_INSECURE_BIND=true
ENTRYPOINT ["edgewise-server"]

# GPUs and the driver's libraries are the host's. The NVIDIA Container Toolkit reads these variables and brings them in.
FROM settings AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build /models /models
COPY --from=build-cuda /rootfs-cuda /

FROM settings AS cpu
COPY --from=build /models /models
COPY --from=build /rootfs /
