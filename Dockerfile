# The service. Build: docker build -t midspan .   Run: see compose.yaml
FROM python:3.11-slim

ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 OMP_WAIT_POLICY=PASSIVE
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE CHANGELOG.md ./
COPY src ./src
RUN pip install --constraint constraints.txt ".[serve,train,onnx,postgres,milvus]" \
    && useradd --create-home --uid 10001 midspan \
    && install --directory --owner midspan --mode 700 /data

USER midspan
WORKDIR /data
VOLUME /data
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD \
    ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/readyz')"]
# Not loopback, so it starts only with MIDSPAN_READ_TOKEN and MIDSPAN_ADMIN_TOKEN, or --tokens.
ENTRYPOINT ["midspan", "serve", "--host", "0.0.0.0", "--port", "8080"]
