# The router of compose-replicas.yaml and kubernetes-replicas.yaml: `docker build -t smg:1.13.0 -f router.Dockerfile .`
FROM python:3.12-slim
RUN pip install --no-cache-dir smg==1.13.0
USER 65532
