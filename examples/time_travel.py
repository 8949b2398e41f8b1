"""Five questions to an export of the log, as one asks them in a notebook. Needs no server and no model.

Make an export with `contrail export incident.contrail --data data`, then run this with
`.venv/bin/python examples/time_travel.py incident.contrail [KEY_FILE]`.
"""

from __future__ import annotations

import sys

from core.errors import CallerError
from replay.session import ReplaySession


def why_was_it_slow(log: ReplaySession) -> None:
    """The slowest request of all: why it went there, and where its time went."""
    for slow in log.decisions(slowest=1):
        attempt = log.explain(slow.request).attempts[-1]
        print(f"{slow.request} took {slow.ttft_ms} ms to its first token on {slow.worker_name}: {attempt.why}")
        if attempt.phases is not None and attempt.phases.behind_ms:
            print(f"  {attempt.phases.behind_ms} ms of them behind {attempt.phases.behind_requests} other requests")
        if attempt.reuse is not None:
            print(f"  {attempt.reuse.text}")


def which_worker_should_not_have_got_it(log: ReplaySession) -> None:
    """The decision that the best of the usual settings would have made otherwise, and that cost most."""
    best = log.compare()[0]
    print(f"best of the usual settings: {best.scenario.label}, an estimated {best.ttft_new_ms:.1f} ms to a first token")
    for case in best.worst[:1]:
        went, instead = best.names[case.recorded_worker], best.names.get(case.new_worker, "nobody")
        print(f"  {case.request} went to {went}; on {instead} it had {case.regret_blocks} blocks less to compute")


def would_round_robin_have_been_better(log: ReplaySession) -> None:
    """Everything decided again, by turns."""
    turns = log.what_if(policy="round-robin")
    print(
        f"round-robin would have been {'better' if turns.better else 'no better'}: {turns.changed} of "
        f"{turns.decisions} decisions change, {turns.hit_rate_new:.0%} of the prompt tokens expected in a cache "
        f"instead of {turns.hit_rate_recorded:.0%}"
    )


def do_the_replicas_agree(log: ReplaySession) -> None:
    """Every decision of every replica again, and every digest that they told, against what the log gives."""
    found = log.verify()
    print(
        f"{found.verified} of {found.decisions} decisions of {len(found.replicas)} replicas come out of the log again, "
        f"{found.different} differ; {found.folds.different} of {found.folds.compared} told folds differ"
    )


def what_did_a_replica_believe(log: ReplaySession) -> None:
    """In the middle of what the last one recorded decided."""
    last = log.decisions()[-1]
    mine = log.decisions(replica=last.replica)
    middle = mine[len(mine) // 2]
    held = log.at(middle.request, replica=last.replica)
    print(f"{last.replica_name} at {held.time}, under policy {held.settings['policy']}:")
    for worker in held.workers:
        print(f"  {worker.name}: {sum(worker.blocks.values())} blocks cached, {worker.active_requests} requests")


QUESTIONS = (
    why_was_it_slow,
    which_worker_should_not_have_got_it,
    would_round_robin_have_been_better,
    do_the_replicas_agree,
    what_did_a_replica_believe,
)


def main(path: str, key_file: str | None = None) -> None:
    """Each question with its answer."""
    with ReplaySession.open(path, key_file) as log:
        for question in QUESTIONS:
            print(f"{question.__name__.replace('_', ' ')}?")
            question(log)
            print()


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: time_travel.py EXPORT [KEY_FILE]; `contrail export EXPORT --data data` makes one")
    try:
        main(*sys.argv[1:])
    except CallerError as error:
        sys.exit(str(error))
