# docker build --target slim -t gpucheck:slim .      probe, advise, check --no-smoke
# docker build --target cuda -t gpucheck:cuda .      and the training on NVIDIA cards
#
# docker run --rm --gpus all gpucheck:cuda check --expect-gpus 4
FROM python:3.12-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE requirements.txt ./
COPY gpucheck gpucheck
COPY catalog catalog
COPY scripts scripts
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim-bookworm AS slim
# The NVIDIA container toolkit puts the driver's libraries and the cards into the container.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility PYTHONUNBUFFERED=1
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    --mount=type=bind,source=requirements.txt,target=/requirements.txt \
    pip install --no-cache-dir --constraint /requirements.txt /wheels/*.whl
# As root (--user 0) the firmware's tables can be read too, where the container may.
USER 65534:65534
ENTRYPOINT ["gpucheck"]
CMD ["check", "--no-smoke"]

FROM python:3.12-slim-bookworm AS cuda
ARG EXTRA=cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility PYTHONUNBUFFERED=1
# TensorFlow's CUDA libraries come from the package index; EXTRA=cuda-pascal-volta for P40, P100, V100.
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(echo /wheels/*.whl)[${EXTRA}]"
USER 65534:65534
ENTRYPOINT ["gpucheck"]
CMD ["check"]
