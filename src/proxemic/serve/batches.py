"""Questions that arrive one by one and are answered together."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any


class Batches:
    """Collect the questions that wait while a batch is answered; they are the next batch.

    Args:
        answer: Answers a list of questions in order. An exception among the answers is raised to its asker alone.
        executor: Where `answer` runs, one batch after the other.
        most: The largest number of questions in a batch.
    """

    def __init__(self, answer: Callable[[Sequence[Any]], Sequence[Any]], executor: Executor, most: int) -> None:
        self._answer, self._executor, self._most = answer, executor, most
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._running: asyncio.Task[None] | None = None

    async def ask(self, question: Any) -> Any:
        """Return the answer to a question."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append((question, future))
        if self._running is None:
            self._running = loop.create_task(self._run())
        return await future

    async def _run(self) -> None:
        while self._waiting:
            batch = [entry for entry in self._waiting[: self._most] if not entry[1].done()]  # done: nobody waits
            del self._waiting[: self._most]
            questions = [question for question, _ in batch]
            answers = await asyncio.get_running_loop().run_in_executor(self._executor, self._answer, questions)
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    (future.set_exception if isinstance(answer, Exception) else future.set_result)(answer)
        self._running = None
