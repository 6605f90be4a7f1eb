"""A process that is one server: its logs, its signals, its exit code, and an interpreter that is set for tokens."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable

from service.app import EXIT_CANNOT_START, EXIT_ENGINE_LOST, App, StartError
from service.ops.health import Readiness
from service.ops.logs import set_up_logs
from service.settings import Settings

logger = logging.getLogger("soloist.server")

SWITCH_INTERVAL_S = 0.0005
EXIT_INTERRUPTED = 130  # as every subcommand's


def run_server(settings: Settings) -> int:
    """`soloist serve`: log, serve, leave on SIGTERM and SIGINT. Returns the exit code.

    SIGTERM drains in order. SIGINT (Ctrl-C) skips the time for balancers. Each further signal skips a phase. SIGHUP is
    as SIGTERM where a terminal reads the log, since then that has gone; elsewhere it ends nothing.
    """
    log = set_up_logs(settings.log_level, settings.log_format)
    _log_strays()
    try:
        code = asyncio.run(_serve(settings, lambda: log.writer.dropped))
    except StartError as error:
        logger.critical("cannot start", extra={"fields": {"error": str(error)}})
        code = EXIT_CANNOT_START
    except KeyboardInterrupt:  # before its signals were its own
        logger.critical("interrupted before it had begun")
        code = EXIT_INTERRUPTED
    except Exception:  # a bug of ours: Python would write it to a pipe that nobody may read
        logger.critical("the server broke", exc_info=True)
        code = EXIT_CANNOT_START
    logging.shutdown()
    if code == EXIT_ENGINE_LOST or _engine_lives():
        os._exit(code)  # a lost device, or a load that goes on, may hang whatever the interpreter does on its way out
    return code


def _engine_lives() -> bool:
    return any(thread.name == "engine" for thread in threading.enumerate())


def _log_strays() -> None:
    """Let the log have what Python would write by itself: warnings, and errors that nobody caught."""
    logging.captureWarnings(capture=True)

    def in_thread(stray: threading.ExceptHookArgs) -> None:
        if stray.exc_value is not None:
            logger.error("a thread broke", exc_info=stray.exc_value)

    def unraisable(stray: sys.UnraisableHookArgs) -> None:
        logger.error("an error came where none can be raised", exc_info=stray.exc_value)

    threading.excepthook = in_thread
    sys.unraisablehook = unraisable


async def _serve(settings: Settings, log_dropped: Callable[[], int] = lambda: 0) -> int:
    app = App(settings)
    app.metrics.read_log_drops(log_dropped)
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        if app.health.state in (Readiness.LOADING, Readiness.SERVING, Readiness.UNSOUND):
            app.signal()
        app.signal()

    on_terminal = sys.stderr.isatty()  # once it has gone there is no telling

    def hung_up() -> None:
        if on_terminal:
            app.signal()
        else:
            logger.info("SIGHUP: keys and certificates are read by themselves when their files change")

    loop.add_signal_handler(signal.SIGHUP, hung_up)
    loop.add_signal_handler(signal.SIGTERM, app.signal)
    loop.add_signal_handler(signal.SIGINT, interrupted)
    await app.start()
    steadying = asyncio.create_task(_steady_when_ready(app))
    try:
        return await app.run()
    finally:
        steadying.cancel()
        await asyncio.wait([steadying])


async def _steady_when_ready(app: App) -> None:
    try:
        await app.ready()
    except Exception:  # told by the app, which ends the process
        return
    steady_interpreter()


def steady_interpreter() -> None:
    """Keep the interpreter from being what a token waits for. For a process whose model is loaded.

    A full collection goes through every object of torch and of the model, and holds all threads meanwhile: a gap that a
    reader sees. What lives now lives as long as the process, so it is looked through no more. And the engine's thread
    and the event loop share one lock: a thread that wants it asks its holder for it after this interval, of which the
    usual 5 ms are several tokens.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
