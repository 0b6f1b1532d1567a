"""Search for a composition on the clients' validation data: results/search_compositions.py SCENARIO DATA OUT.

What averaging returns does not change a run's way: one run without averaging gives the score of every mean.
Each candidate is run with the seed 100, which no table has, or with several of --seeds, and a line of JSON
for each run is appended to OUT, so that an interrupted search goes on. A score is the mean over the last five
evaluations, as in the tables; the last one is beside it.
"""

import argparse
import json
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import mean

import torch
from compositions import CANDIDATES, END_PULL, LOCAL_RATE, PULL
from distilled_curves import distill

from asyncmanifold import Averaging, ExponentialAveraging, Records, Run, ServerState, TailAveraging
from asyncmanifold.configuration.config import load_config
from asyncmanifold.experiments.many_runs import run_config
from asyncmanifold.simulation.runner import validation_score
from asyncmanifold.vectors import FlatModel, Statistics

MEANS = {
    **{f"tail {share:g}": TailAveraging(share) for share in (0.125, 0.25, 0.5)},
    **{f"half-life {life}": ExponentialAveraging(life) for life in (4, 8, 16, 32)},
}


class ManyMeans:
    """Observes a run: keeps every mean of its models, and scores them at the last five evaluations."""

    def __init__(self, task, run: Run) -> None:
        self._task = task
        self._score_from = run.updates - 5 * run.evaluate_every
        self._means = {**MEANS, "last quarter": Averaging(3 * run.updates // 4)}
        self._memories = {name: {} for name in self._means}
        self.scores = defaultdict(list)

    def __call__(self, record, model) -> None:
        if record["kind"] == "evaluation" and record["update"] > self._score_from:
            self._score(FlatModel(model()))
        if record["kind"] != "update":
            return
        flat = FlatModel(model())
        state = ServerState(flat.vector, flat.read_statistics(), version=record["version"])
        for name, part in self._means.items():
            self._memories[name] = part.include(self._memories[name], state)

    def _score(self, flat: FlatModel) -> None:
        self.scores["none"].append(validation_score(self._task, flat) or 0.0)
        for name, memory in self._memories.items():
            if memory:
                flat.load(memory["theta"], Statistics(memory["floats"], memory["integers"]))
                self.scores[name].append(validation_score(self._task, flat) or 0.0)


def score(scenario: str, data: str, name: str, seed: int) -> dict:
    """Run a candidate and return its scores by mean, all on validation data."""
    torch.set_num_threads(1)
    method, settings = CANDIDATES[name]
    usual = load_config(scenario, method, data=data or None)
    settings = {key: value.format(updates=usual.run.updates) for key, value in settings.items()}
    factor = float(settings.pop(LOCAL_RATE, 1.0))
    distill(*(float(settings.pop(key, 0.0)) for key in (PULL, END_PULL)))
    settings["local_lr"] = f"{factor * usual.training.local_lr:g}"
    config = load_config(scenario, method, seed=seed, data=data or None, settings=settings)
    means = ManyMeans(config.build_task(), config.run)
    run_config(config, Records(observer=means))
    last = {each: found[-1] for each, found in means.scores.items()}
    return {
        "candidate": name,
        "seed": seed,
        "scores": {each: mean(found) for each, found in means.scores.items()},
        "last": last,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("scenario", "data", "out"):
        parser.add_argument(name)
    parser.add_argument("--only", default=[], nargs="+", help="these candidates, in this order")
    parser.add_argument("--seeds", type=int, default=[100], nargs="+")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    out = Path(given.out)
    made = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(run["candidate"], run["seed"]) for run in made}
    wanted = [(name, seed) for seed in given.seeds for name in given.only or CANDIDATES]
    with ProcessPoolExecutor(given.workers) as pool, out.open("a") as file:
        runs = [pool.submit(score, given.scenario, given.data, *each) for each in wanted if each not in done]
        for found in (run.result() for run in as_completed(runs)):
            print(json.dumps(found), file=file, flush=True)
            scores = found["scores"]
            best = max(scores, key=scores.get)
            run = f"{found['candidate']:30} {found['seed']}"
            print(f"{run} {scores['none']:.4f}, {best} {scores[best]:.4f}", flush=True)


if __name__ == "__main__":
    main()
