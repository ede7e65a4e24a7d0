# The image of the plugin: `docker build -t apportion:0.1.0 .`
#
# Both images may be replaced: any Debian 12 or newer for the builder, any with the builder's
# Python version for the base. Where the builder has the tools, nothing is installed by apt.
ARG BUILDER_IMAGE=python:3.11-slim-bookworm
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BUILDER_IMAGE} AS builder
RUN missing=""; \
    command -v gcc >/dev/null && [ -e /usr/include/stdio.h ] || missing="gcc libc6-dev"; \
    command -v make >/dev/null || missing="$missing make"; \
    python3 -c "import ensurepip" 2>/dev/null || missing="$missing python3 python3-venv"; \
    if [ -n "$missing" ]; then \
      apt-get update && apt-get install --yes --no-install-recommends $missing; \
    fi
# pip reads these from its environment. They end with this stage.
ARG PIP_CERT
ARG PIP_DEFAULT_TIMEOUT
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_INDEX_URL
ARG PIP_TRUSTED_HOST
WORKDIR /src

# Dependencies first: they change less often than the code. All by hash, the build backend too.
COPY constraints.txt constraints-dev.txt ./
RUN awk '/^[a-z]/ {keep = /^setuptools==/} keep' constraints-dev.txt >backend.txt \
    && python3 -m venv /venv \
    && /venv/bin/pip install --no-cache-dir --require-hashes -r backend.txt \
    && /venv/bin/pip install --no-cache-dir --require-hashes --no-compile \
         --target /out/opt/apportion -r constraints.txt

# The container runtime runs hook and ldconfig in foreign root file systems: no library is there.
COPY shim shim
RUN make -C shim BUILD=/build/shim DESTDIR=/out PREFIX=/usr/lib/apportion install \
    && cp /sbin/ldconfig /out/usr/lib/apportion/ \
    && for program in apportion-ldcache ldconfig; do \
         headers="$(readelf --program-headers "/out/usr/lib/apportion/$program")" || exit 1; \
         case "$headers" in *INTERP*) echo "$program is not static" >&2; exit 1;; esac; \
       done

COPY LICENSE README.md pyproject.toml ./
COPY plugin plugin
# Compiled here, since the root file system is read-only later; by content, not by time.
RUN /venv/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /build/wheel . \
    && /venv/bin/pip install --no-cache-dir --no-deps --no-compile --upgrade \
         --target /out/opt/apportion /build/wheel/*.whl \
    && rm -rf /out/opt/apportion/bin \
    && python3 -m compileall -q --invalidation-mode unchecked-hash /out/opt/apportion
# Python is at another place in each base image, so no script of pip's would fit.
RUN mkdir -p /out/usr/local/bin \
    && printf '%s\n' '#!/bin/sh' 'exec python3 -m apportion "$@"' >/out/usr/local/bin/apportion \
    && chmod 0755 /out/usr/local/bin/apportion

FROM ${BASE_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=""
LABEL org.opencontainers.image.title="apportion" \
      org.opencontainers.image.description="Shares of NVIDIA GPUs for Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=builder /out/ /
ENV PYTHONPATH=/opt/apportion \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1
# A base with another Python or C library than the builder's ends here and not on a node.
RUN ["apportion", "--help"]
ENTRYPOINT ["apportion"]
CMD ["plugin"]
