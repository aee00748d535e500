"""What long-lived processes hold, sampled, and how much it has grown."""

import math
import statistics
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import psutil

PERIOD_S: Final = 1.0
WARM_UP: Final = 0.25
"""The first part of a process's samples, in which caches fill."""
SAMPLES_MIN: Final = 20
WOBBLE: Final = 1.0
"""A neighbour's stream more or less is no leak: counts are about twenty."""

TASKS_WOBBLE: Final = 4.0
"""A stream has three tasks, a call one."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Of one process at one moment. `num_tasks` None: it did not say."""

    rss_bytes: int
    num_threads: int
    num_descriptors: int
    num_tasks: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """From the first quarter after the warm-up to the last quarter, medians; in percent. The
    counts are of the last quarter; NaN: the process did not say."""

    name: str
    num_samples: int
    rss_percent: float
    threads_percent: float
    descriptors_percent: float
    tasks_percent: float
    rss_mib: float
    num_threads: float
    num_descriptors: float
    num_tasks: float


class Sampler:
    """Samples `processes()` (a name and a process id each) in a thread while its block lasts. A
    name whose process was replaced begins anew. `num_tasks` asks one how many tasks it has."""

    def __init__(
        self,
        processes: Callable[[], Mapping[str, int]],
        num_tasks: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        self._processes = processes
        self._num_tasks = num_tasks
        self._samples: dict[tuple[str, int], list[Sample]] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(PERIOD_S):
            for name, pid in self._processes().items():
                try:
                    process = psutil.Process(pid)
                    with process.oneshot():
                        sample = Sample(
                            process.memory_info().rss,
                            process.num_threads(),
                            process.num_fds(),
                            self._num_tasks(name),
                        )
                except psutil.Error:  # it has just ended
                    continue
                self._samples.setdefault((name, pid), []).append(sample)

    def growths(self) -> list[Growth]:
        """Of the longest life of each name that lived long enough."""
        longest: dict[str, list[Sample]] = {}
        for (name, _), samples in self._samples.items():
            if len(samples) > len(longest.get(name, ())):
                longest[name] = samples
        return [
            _growth(name, samples)
            for name, samples in sorted(longest.items())
            if len(samples) >= SAMPLES_MIN
        ]


def _growth(name: str, samples: list[Sample]) -> Growth:
    warm = samples[int(len(samples) * WARM_UP) :]
    part = max(1, len(warm) // 4)
    first, last = warm[:part], warm[-part:]
    tasks = [[s.num_tasks for s in each if s.num_tasks is not None] for each in (first, last)]
    tasks_before, tasks_after = (statistics.median(each) if each else math.nan for each in tasks)

    def percent(of: Callable[[Sample], float], *, wobble: float = 0.0) -> float:
        before = statistics.median(map(of, first))
        return 100.0 * ((statistics.median(map(of, last)) - wobble) / before - 1.0)

    return Growth(
        name=name,
        num_samples=len(samples),
        rss_percent=percent(lambda sample: sample.rss_bytes),
        threads_percent=percent(lambda sample: sample.num_threads, wobble=WOBBLE),
        descriptors_percent=percent(lambda sample: sample.num_descriptors, wobble=WOBBLE),
        tasks_percent=100.0 * ((tasks_after - TASKS_WOBBLE) / tasks_before - 1.0),
        rss_mib=statistics.median(sample.rss_bytes for sample in last) / 2**20,
        num_threads=statistics.median(sample.num_threads for sample in last),
        num_descriptors=statistics.median(sample.num_descriptors for sample in last),
        num_tasks=tasks_after,
    )
