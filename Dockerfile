# Three images from one file: `coordinator` (no torch), `node-cpu`, `node-cuda`.
#   docker build --target coordinator -t plait-coordinator .
# The order of the stages lets a builder that builds all of them up to the target do the least.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# Empty packages: what the extras ask for is installed before the source comes, and kept when only
# the source changes.
FROM ${PYTHON_IMAGE} AS requirements
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
RUN for package in plait scheduler coordinator node; do mkdir $package && touch $package/__init__.py; done

FROM requirements AS needs-coordinator
RUN python3 -m venv /opt/plait \
    && /opt/plait/bin/pip install --no-cache-dir '/src[coordinator,otel,postgres]'

FROM needs-coordinator AS build-coordinator
COPY . .
RUN /opt/plait/bin/pip install --no-cache-dir --no-deps --force-reinstall /src

FROM ${PYTHON_IMAGE} AS run
RUN useradd --create-home --uid 10001 plait \
    && install -d -o plait -g plait /var/lib/plait /var/cache/plait /join /broker
ENV PATH=/opt/plait/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PLAIT_HOME=/var/lib/plait \
    PLAIT_MODELS=/var/cache/plait
USER 10001:10001
WORKDIR /var/lib/plait
VOLUME ["/var/lib/plait", "/var/cache/plait"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["plait"]

FROM run AS coordinator
COPY --from=build-coordinator /opt/plait /opt/plait
EXPOSE 7420 7421 7480
CMD ["coordinator", "--help"]

# TORCH_ARGS chooses the torch build, e.g. "--index-url https://download.pytorch.org/whl/cpu": a
# quarter of the size, where the default brings libraries for GPUs.
FROM requirements AS needs-node-cpu
ARG TORCH_ARGS=""
RUN python3 -m venv /opt/plait \
    && /opt/plait/bin/pip install --no-cache-dir ${TORCH_ARGS} 'torch>=2.6,<2.14' \
    && /opt/plait/bin/pip install --no-cache-dir '/src[node]'

FROM needs-node-cpu AS build-node-cpu
COPY . .
RUN /opt/plait/bin/pip install --no-cache-dir --no-deps --force-reinstall /src

FROM run AS node-cpu
COPY --from=build-node-cpu /opt/plait /opt/plait
HEALTHCHECK --interval=10s --timeout=8s --start-period=120s --retries=6 \
    CMD ["plait", "node", "status", "--quiet"]
CMD ["node", "--help"]

# On Linux the default torch wheel brings its own CUDA libraries; the host needs a driver and
# nvidia-container-toolkit.
FROM requirements AS needs-node-cuda
RUN python3 -m venv /opt/plait \
    && /opt/plait/bin/pip install --no-cache-dir '/src[node]'

FROM needs-node-cuda AS build-node-cuda
COPY . .
RUN /opt/plait/bin/pip install --no-cache-dir --no-deps --force-reinstall /src

FROM run AS node-cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-node-cuda /opt/plait /opt/plait
HEALTHCHECK --interval=10s --timeout=8s --start-period=300s --retries=6 \
    CMD ["plait", "node", "status", "--quiet"]
CMD ["node", "--help"]
