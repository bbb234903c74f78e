# emberge without a set-up: docker build -t emberge . ; docker run --rm -v "$PWD:/data" emberge run recipe.yaml --out out
# Torch is its CPU build, without CUDA's libraries. For GPUs name the index of your CUDA:
#   docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 -t emberge:cuda .
#   docker run --rm --gpus all -v "$PWD:/data" emberge:cuda run recipe.yaml --out out

FROM python:3.11-slim-bookworm AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /venv
ENV PATH=/venv/bin:$PATH
WORKDIR /src
COPY constraints.txt ./
# First and alone: what follows finds torch in place and does not fetch the default build for CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-deps --index-url "$TORCH_INDEX" --constraint constraints.txt torch
# The compiled kernels are built with the wheel.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY core core
COPY plugins plugins
COPY merge_recipes merge_recipes
COPY examples/third_party_plugin examples/third_party_plugin
# Extras by name, such as demo,export; demo has a small model and corpora.
ARG EXTRAS=demo
RUN pip install --constraint constraints.txt ".[$EXTRAS]"

FROM python:3.11-slim-bookworm
RUN groupadd --gid 10001 emberge \
    && useradd --uid 10001 --gid emberge --create-home emberge \
    && install --directory --owner emberge --group emberge /data /models
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH \
    HF_HOME=/models \
    PYTHONUTF8=1
WORKDIR /data
USER 10001:10001
ENTRYPOINT ["emberge"]
CMD ["--help"]
