"""A stand-in for the package `spaces` of a ZeroGPU Space: a decorated generator runs in a process that is forked from
this one.

As in the real one, what is yielded is pickled, the work is done on a new thread of the forked process, of an error only
the class's name comes back, and a caller that leaves early stops the work.
"""

import multiprocessing
from threading import Thread

FORK = multiprocessing.get_context("fork")


class LentGpu:
    """Takes the place of the module."""

    def __init__(self):
        self.loans: list[float] = []  # the seconds that each loan was asked for

    def GPU(self, task=None, *, duration=60):
        if task is None:
            return lambda task: self.GPU(task, duration=duration)

        def borrow(*args):
            self.loans.append(duration(*args) if callable(duration) else duration)
            answers, stop = FORK.SimpleQueue(), FORK.Event()
            process = FORK.Process(target=_work, args=(task, args, answers, stop), daemon=True)
            process.start()
            try:
                while (answer := answers.get())[0] == "value":
                    yield answer[1]
                if answer[0] == "error":
                    raise RuntimeError(f"ZeroGPU worker error: {answer[1]}")
            finally:
                stop.set()
                process.join(10)

        return borrow


def _work(task, args, answers, stop) -> None:
    def iterate():
        try:
            for value in task(*args):
                if stop.is_set():
                    break
                answers.put(("value", value))
            answers.put(("end", None))
        except Exception as error:
            answers.put(("error", type(error).__name__))

    thread = Thread(target=iterate)
    thread.start()
    thread.join()
