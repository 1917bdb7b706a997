# outgrad for CPUs: the PyTorch package, and the checker, which proves the bounds of GELU in bf16 while the image
# is built.
#   docker build -t outgrad . && docker run --rm -it outgrad
FROM debian:12-slim

# Those of the wrapper, `outgrad`, and what pip needs.
RUN apt-get update && apt-get install -y --no-install-recommends \
      g++ cmake ninja-build libflint-arb-dev libflint-dev libmpfr-dev libgmp-dev libeigen3-dev libboost-dev \
      libcli11-dev libfmt-dev nlohmann-json3-dev libzip-dev libopenmpi-dev python3-jinja2 python3-matplotlib \
      python3-pip python3-venv \
    && rm -rf /var/lib/apt/lists/*

# PyTorch without CUDA: 200 MB in place of 3 GB.
RUN python3 -m venv /opt/outgrad && /opt/outgrad/bin/pip install --no-cache-dir \
      "torch>=2.10" "scikit-build-core>=0.10" --extra-index-url https://download.pytorch.org/whl/cpu
ENV PATH=/opt/outgrad/bin:$PATH

COPY . /outgrad
WORKDIR /outgrad
RUN pip install --no-cache-dir --no-build-isolation .
RUN ./outgrad check kernels/generated/gelu_bf16.h
CMD ["bash"]
