# Three images from one file: `coordinator` (no torch), `node-cpu`, `node-cuda`.
#   docker build --target coordinator -t plait-coordinator .
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS source
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY plait plait
COPY scheduler scheduler
COPY coordinator coordinator
COPY node node

FROM source AS build-coordinator
RUN python3 -m venv /opt/plait \
    && /opt/plait/bin/pip install --no-cache-dir '/src[coordinator,postgres]'

# TORCH_ARGS chooses the torch build, e.g. "--extra-index-url https://download.pytorch.org/whl/cpu".
FROM source AS build-node-cpu
ARG TORCH_ARGS=""
RUN python3 -m venv /opt/plait \
    && /opt/plait/bin/pip install --no-cache-dir ${TORCH_ARGS} 'torch>=2.6,<2.14' \
    && /opt/plait/bin/pip install --no-cache-dir '/src[node]'

# On Linux the default torch wheel brings its own CUDA libraries; the host needs a driver and nvidia-container-toolkit.
FROM source AS build-node-cuda
RUN python3 -m venv /opt/plait \
    && /opt/plait/bin/pip install --no-cache-dir '/src[node]'

FROM ${PYTHON_IMAGE} AS run
RUN useradd --create-home --uid 10001 plait \
    && install -d -o plait -g plait /var/lib/plait /var/cache/plait /join /broker
ENV PATH=/opt/plait/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PLAIT_HOME=/var/lib/plait \
    PLAIT_MODELS=/var/cache/plait
USER plait
WORKDIR /var/lib/plait
VOLUME ["/var/lib/plait", "/var/cache/plait"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["plait"]

FROM run AS node-cpu
COPY --from=build-node-cpu /opt/plait /opt/plait
CMD ["node", "--help"]

FROM run AS node-cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-node-cuda /opt/plait /opt/plait
CMD ["node", "--help"]

FROM run AS coordinator
COPY --from=build-coordinator /opt/plait /opt/plait
EXPOSE 7420 7421 7480
CMD ["coordinator", "--help"]
