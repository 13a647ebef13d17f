# The program without a GPU. Build it once, then reconstruct a folder of snapshots that is mounted at /data:
#   docker build -t cassi .
#   docker run --rm -v "$PWD:/data" cassi reconstruct /data/snapshots --mask /data/mask.mat --num-bands 28
FROM python:3.12-slim
ENV PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1 NUMBA_CACHE_DIR=/tmp/numba MPLCONFIGDIR=/tmp/matplotlib
WORKDIR /opt/cassi
COPY constraints.txt ./
RUN python -m pip install -c constraints.txt torch --index-url https://download.pytorch.org/whl/cpu
COPY pyproject.toml README.md LICENSE MODEL_CARD.md ./
COPY cassi cassi
RUN python -m pip install -c constraints.txt ".[formats]"
WORKDIR /data
ENTRYPOINT ["cassi"]
CMD ["--help"]
