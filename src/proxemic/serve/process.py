"""The server's end of the worker process, which it starts, asks, and starts again when it is gone."""

import asyncio
import contextlib
import itertools
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from proxemic.errors import UserError
from proxemic.safe_path import safe_path
from proxemic.serve.messages import AWAY, Answered, Asked, Embed, Question, Refused, Search, Settings

METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
"""How it is started: by a process that has imported its libraries, from which another one takes no time to begin."""

_GRACE = 10.0  # seconds after which a worker that has not even said that an answer is late is taken for stuck
_SHOWN = 256  # further questions that may wait, which need no model
_PAUSES = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before it is started again, the longer the more often it has ended
_LONG = 60.0  # seconds of work after which its end is counted as the first


@dataclass(eq=False)
class _Waiting:
    asked: Asked
    costly: bool
    answer: "asyncio.Future[Any]"
    stuck: asyncio.TimerHandle
    sent: bool = False


class WorkerProcess:
    """The worker process.

    Args:
        settings: What it is started with.
        room: Queries that may wait for it.
        report: Called with a sentence when it has ended, and when it cannot be started again.
    """

    def __init__(self, settings: Settings, room: int, report: Callable[[str], object]) -> None:
        self._settings = settings
        self._room = room
        self._report = report
        self._numbers = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        self._sender = ThreadPoolExecutor(1)
        self._ends = 0
        self._stopping = False
        self._why = ""  # it cannot be started

    def start(self) -> dict[str, Any]:
        """Start it, and wait for what it says about the gallery; `UserError` where it cannot open that."""
        context: Any = multiprocessing.get_context(METHOD)
        if METHOD == "forkserver":
            context.set_forkserver_preload(["proxemic.serve.worker"])
        connection, others = context.Pipe()
        self._process = context.Process(target=_work, args=(others, self._settings), daemon=True)
        with safe_path():
            self._process.start()
        others.close()
        self._connection: Connection = connection
        try:
            first = connection.recv()
        except (EOFError, OSError):
            self._process.join()
            raise UserError(
                f"The worker process {_end(self._process.exitcode)} before it had opened the gallery: it may have "
                "needed more memory than there is."
            ) from None
        if isinstance(first, Refused):
            raise UserError(first.why)
        self._began = time.monotonic()
        return first

    def attach(self) -> None:
        """Pass on to it, from now on, what `ask` is asked in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._up = asyncio.Event()
        self._feeding = self._loop.create_task(self._feed())
        self._listen()

    async def stop(self) -> None:
        """Have it close the gallery and end, or end it."""
        self._stopping = True
        self._feeding.cancel()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await self._loop.run_in_executor(self._sender, self._connection.send, None)
        await asyncio.to_thread(self._process.join, 3)
        self.kill()
        self._sender.shutdown(wait=False)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.join()

    async def ask(self, question: Question, seconds: float) -> Any:
        """The answer to a question; `Refused` where there is none, too many wait, or it would come too late."""
        costly = isinstance(question, Embed) or (isinstance(question, Search) and isinstance(question.query, bytes))
        before = sum(each.costly == costly for each in self._waiting.values())
        if self._why or before >= (self._room if costly else _SHOWN):
            raise Refused(503, self._why or f"{before:,} requests are waiting already: try again in a moment.")
        number = next(self._numbers)
        stuck = self._loop.call_later(seconds + _GRACE, self._kill_if_stuck, number)
        asked = Asked(number, question, time.monotonic() + seconds)
        waiting = _Waiting(asked, costly, self._loop.create_future(), stuck)
        self._waiting[number] = waiting
        self._queue.put_nowait(waiting)
        await asyncio.wait([waiting.answer], timeout=seconds)
        if not waiting.answer.done():
            if not waiting.sent:
                self._settle(Answered(number, None))
            raise Refused(504, f"There was no answer within {seconds:g} s: try again in a moment.")
        answer = waiting.answer.result()
        if isinstance(answer, Refused):
            raise answer
        return answer

    async def _feed(self) -> None:
        """Send questions one by one, by a thread, as the worker may not read."""
        while True:
            waiting = await self._queue.get()
            await self._up.wait()
            if waiting.answer.done():
                continue
            waiting.sent = True
            with contextlib.suppress(OSError):  # it has ended, which the listener notices
                await self._loop.run_in_executor(self._sender, self._connection.send, waiting.asked)

    def _listen(self) -> None:
        """Take the answers of the process that has been started."""
        self._up.set()
        threading.Thread(target=self._receive, args=(self._connection,), daemon=True).start()

    def _receive(self, connection: Connection) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            try:
                while True:
                    self._loop.call_soon_threadsafe(self._settle, connection.recv())
            except (EOFError, OSError):
                self._loop.call_soon_threadsafe(self._lost)

    def _settle(self, answered: Answered) -> None:
        waiting = self._waiting.pop(answered.number, None)
        if waiting is not None:
            waiting.stuck.cancel()
            waiting.answer.set_result(answered.answer)

    def _kill_if_stuck(self, number: int) -> None:
        waiting = self._waiting.get(number)
        if waiting is not None and waiting.sent:
            self._report("The worker process does not answer, and is ended.")
            self._process.kill()

    def _lost(self) -> None:
        """Answer the requests that it was at, and start it again; the others wait for that."""
        if self._stopping:
            return
        self._up.clear()
        self._process.join()
        refused = Refused(503, "The worker process ended in the middle of this request: try again.")
        for waiting in [*self._waiting.values()]:
            if waiting.sent:
                self._settle(Answered(waiting.asked.number, refused))
        self._ends = 0 if time.monotonic() - self._began > _LONG else self._ends + 1
        self._report(f"The worker process {_end(self._process.exitcode)}, and is started again.")
        self._starting = self._loop.create_task(self._start_again())

    async def _start_again(self) -> None:
        while not self._stopping:
            await asyncio.sleep(_PAUSES[min(max(self._ends - 1, 0), len(_PAUSES) - 1)])
            try:
                await asyncio.to_thread(self.start)
            except UserError as error:
                self._ends += 1
                self._why = AWAY
                self._report(f"The gallery cannot be searched for now: {error}")
                for waiting in [*self._waiting.values()]:
                    self._settle(Answered(waiting.asked.number, Refused(503, self._why)))
            else:
                self._why = ""
                self._listen()
                return


def _work(connection: Connection, settings: Settings) -> None:
    from proxemic.serve.worker import work  # what this process does without

    work(connection, settings)


def _end(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended (exit code {code})"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
