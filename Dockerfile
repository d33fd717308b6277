# The server for CPUs, with the command line and the example models. docs/deploy.md says how to run it.
#
#   docker build --target cpu -t edgewise .
#
# The image holds the two programs, the shared libraries they load and nothing else of Debian: no shell, no package
# manager. deploy/collect-runtime.sh finds the libraries, so there is one list of packages: that of ./dev.

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
RUN deploy/collect-runtime.sh /rootfs build/bin/edgewise-server build/bin/edgewise \
 && cp -r examples/models /rootfs/models && chmod -R u=rwX,go=rX /rootfs/models

FROM scratch AS cpu
ARG REVISION=unknown
LABEL org.opencontainers.image.title="edgewise" \
      org.opencontainers.image.description="Inference server for Transformers with adaptive sparse attention (CPU)" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=build /rootfs /
ENV PATH=/usr/local/bin
USER 65532:65532
# gRPC; /metrics and /healthz.
EXPOSE 8001 8002
# SIGTERM drains: requests in flight are answered, for at most 25 s (--drain_timeout), then the exit code is 0. Behind a
# proxy that finds out by probes, --drain_delay keeps the port open before.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["edgewise", "health", "--timeout=3s"]
# A container has its own loopback, so the server must listen on all its addresses; which of them can be reached from
# outside is decided by what is published. Every flag can be given so (docker run -e), or after the image's name.
ENV EDGEWISE_MODEL_REPOSITORY=/models EDGEWISE_LISTEN=0.0.0.0:8001 EDGEWISE_METRICS_LISTEN=0.0.0.0:8002 \
    EDGEWISE_INSECURE_BIND=true
ENTRYPOINT ["edgewise-server"]
