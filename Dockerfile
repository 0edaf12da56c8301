# One image for migrate, worker, beat and gateway. Build: docker build -t celery-notifier .
FROM python:3.13-slim AS build
RUN pip install --no-cache-dir "uv>=0.9,<1"
ENV UV_PROJECT_ENVIRONMENT=/opt/notifier UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
WORKDIR /src
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --frozen --no-dev --extra gateway --extra webhook --no-install-project
COPY notifier notifier
COPY tasks tasks
COPY lua lua
COPY migrations migrations
RUN uv sync --frozen --no-dev --extra gateway --extra webhook --no-editable

FROM python:3.13-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin notifier
COPY --from=build /opt/notifier /opt/notifier
ENV PATH=/opt/notifier/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Empty on purpose: a tasks.py in the working directory would be imported instead of ours by `celery -A tasks`.
WORKDIR /srv/empty
USER 10001
ENTRYPOINT ["notifier"]
CMD ["worker"]
