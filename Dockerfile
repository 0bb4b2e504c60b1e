# The operator's image: the locked runtime dependencies and the package, nothing else.
ARG BASE=python:3.11-slim
FROM ${BASE} AS build
WORKDIR /src
COPY requirements.lock pyproject.toml README.md LICENSE ./
RUN python3 -m venv /opt/crossover \
 && /opt/crossover/bin/pip install --no-cache-dir --require-hashes -r requirements.lock \
 && /opt/crossover/bin/pip install --no-cache-dir "setuptools>=77"
COPY operator operator
RUN /opt/crossover/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
 && /opt/crossover/bin/pip uninstall --yes setuptools

FROM ${BASE}
COPY --from=build /opt/crossover /opt/crossover
ENV PATH=/opt/crossover/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["crossover"]
CMD ["run"]
