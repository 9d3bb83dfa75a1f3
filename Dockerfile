# JupyterLab answers on 127.0.0.1 alone, so the container shares the host's network:
#   docker build -t workbench . && docker run --rm -it --gpus all --network host workbench
# Without a GPU leave out --gpus all. The first start compiles DeepSpeed's operators for the processor it finds.

# What the environment needs; the devcontainer stops here and brings its own tree.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04 AS base
# The base image's exact tag fixes the release; within it Ubuntu keeps only the newest fix of a package.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends \
      g++ git libaio-dev make python3 python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && install --directory --owner=ubuntu --group=ubuntu /home/ubuntu/workbench
USER 1000:1000
WORKDIR /home/ubuntu/workbench

FROM base AS workbench
COPY --chown=ubuntu:ubuntu pyproject.toml constraints.txt LICENSE README.md ./
COPY --chown=ubuntu:ubuntu scripts scripts
COPY --chown=ubuntu:ubuntu workbench workbench
COPY --chown=ubuntu:ubuntu baselines baselines
RUN python3 scripts/setup.py --gpu --no-ops && rm -rf /home/ubuntu/.cache
COPY --chown=ubuntu:ubuntu . .
CMD ["make", "lab", "LAB_ARGS=--no-browser"]
