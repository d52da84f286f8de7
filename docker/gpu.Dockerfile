# Workers that host models with vLLM on NVIDIA GPUs, built from the root of the repository:
#   docker build -f docker/gpu.Dockerfile --target gpu -t mosaic-tasks-gpu .
# It brings the compiler of CUDA, with which vLLM builds some kernels when it starts. The machine's driver must know this CUDA.
ARG CUDA=13.0.1
ARG UBUNTU=24.04

FROM nvidia/cuda:${CUDA}-devel-ubuntu${UBUNTU} AS gpu
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-dev python3-venv gcc g++ \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/mosaic
ENV PATH=/opt/mosaic/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY requirements/lock.txt requirements/gpu.txt requirements/
RUN pip install -c requirements/lock.txt pip hatchling
RUN pip install -r requirements/gpu.txt
COPY pyproject.toml README.md LICENSE ./
COPY mosaic_tasks mosaic_tasks
COPY queues queues
COPY routing routing
RUN pip install --no-build-isolation -c requirements/gpu.txt -c requirements/lock.txt '.[vllm]'

RUN useradd --uid 10001 --user-group --create-home mosaic
ENV PYTHONUNBUFFERED=1 MOSAIC_HOME=/home/mosaic/data HF_HOME=/home/mosaic/models
# All that is built or noted when an engine starts lies in one folder, the only one that must be writable beside these two.
ENV TRITON_CACHE_DIR=/home/mosaic/.cache/triton CUDA_CACHE_PATH=/home/mosaic/.cache/cuda VLLM_CONFIG_ROOT=/home/mosaic/.cache/vllm-config
USER mosaic
WORKDIR /home/mosaic
RUN mkdir data models
# It is ready once each of its models has answered; large ones take their time to load.
HEALTHCHECK --interval=30s --timeout=10s --start-period=30m CMD ["mosaic", "probe", "ready"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["mosaic"]
CMD ["worker"]
