"""A worker's own /metrics, where NOTIFIER_METRICS_PORT asks for it: for workers without a gateway beside them."""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps

from notifier import exposition, metrics, metrics_dir
from notifier.settings import Settings

log = logging.getLogger("notifier.tasks")


class MetricsServer(bootsteps.StartStopStep):
    """Served by the worker's main process, of itself and, through PROMETHEUS_MULTIPROC_DIR, of its pool."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        self._server: exposition.Server | None = None

    def start(self, worker: Any) -> None:
        """Called once the pool is up."""
        settings = Settings()
        if not settings.metrics_port:
            return
        if metrics_dir.directory() is None and "prefork" in worker.pool_cls.__module__:
            metrics.degraded("metrics_dir", f"{metrics_dir.VARIABLE} is not set: what pool processes count is not told")
        try:
            self._server = exposition.Server(settings)
        except OSError as error:  # of two workers on a host one tells of both, if they share the directory
            where = f"{settings.metrics_host} port {settings.metrics_port}"
            metrics.degraded("metrics_port", f"no /metrics at {where}: {error.strerror}")
        else:
            log.info("metrics at http://%s:%d/metrics", settings.metrics_host, self._server.port)

    def stop(self, worker: Any) -> None:
        """Called at shutdown."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    terminate = stop
