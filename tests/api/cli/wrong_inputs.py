"""Command lines that a new user types wrong, and the first line of the answer to each.

The answer is on stderr, with exit status 2. Of a usage error it is the line behind `Usage:` and `Try … --help`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.replay.simulate.talks import talks, written


class WrongInput(NamedTuple):
    """One command line, in the folder of `make_files`; variables of the environment stand before it."""

    line: str
    answer: str
    """Its first line; the folder is written as `.`."""


FILES = {
    "c_file_misspelt.yaml": "version: 1\nfronted:\n  replicas: 2\n",
    "c_key_misspelt.yaml": "version: 1\nfrontend:\n  replica: 2\n",
    "c_group.yaml": "version: 1\nworkers:\n  - modle: tiny\n",
    "c_routing.yaml": "version: 1\nrouting:\n  own_wait: 2\n",
    "c_type.yaml": "version: 1\nfrontend:\n  replicas: two\n",
    "c_notyaml.yaml": "version: 1\nfrontend: [\n",
    "c_twice.yaml": "version: 1\nversion: 1\n",
    "c_version.yaml": "version: 3\n",
    "c_list.yaml": "- a\n",
    "c_unit.yaml": "version: 1\nlog:\n  max_age: 7\n",
    "c_engine.yaml": "version: 1\nworkers:\n  - engine: vlm\n",
    "c_off.yaml": "version: 1\nlog:\n  snapshot_every: off\n",
    "plain.txt": "hi\n",
    "badkey": "sk\n",
    "empty.jsonl": "",
    "odd.jsonl": '{"a":1}\n',
}


def make_files(folder: Path) -> None:
    """The folder has files and a folder to be wrong about; `small.contrail` is left to the caller."""
    for name, content in FILES.items():
        (folder / name).write_text(content)
    (folder / "folder").mkdir()
    written(folder / "small.jsonl", talks(count=5, turns=4))


NO_DEPLOYMENT = (
    "contrail: no deployment runs with the data folder data: start it with `contrail up --data data`, name another "
    "folder with --data, or give -f FILE or --nats and --etcd, and --key-file"
)
NO_FOLDER = NO_DEPLOYMENT.replace("folder data", "folder nowhere").replace("--data data", "--data nowhere")

WRONG_INPUTS = (
    WrongInput("upp", "Error: No such command 'upp'; did you mean up?"),
    WrongInput("explian req-1", "Error: No such command 'explian'; did you mean explain?"),
    WrongInput("--data x up", "Error: No such option '--data'. Options stand behind the command's name."),
    WrongInput("up --modell tiny", "Error: No such option '--modell'. Did you mean '--model'?"),
    WrongInput("up --workers 0", "Error: Invalid value for '--workers': 0 is not in the range x>=1."),
    WrongInput("up --workers two", "Error: Invalid value for '--workers': 'two' is not a valid integer."),
    WrongInput("up --port 99999", "Error: Invalid value for '--port': 99999 is not in the range 0<=x<=65535."),
    WrongInput("up --engine vlm", "Error: Invalid value for '--engine': 'vlm' is not one of 'vllm', 'simulated'."),
    WrongInput(
        "up --policy fastest",
        "Error: Invalid value for '--policy': 'fastest' is not one of 'kv', 'round-robin', 'random', 'least-"
        "loaded', 'time', 'power-of-two', 'session', 'approximate'.",
    ),
    WrongInput("up -f missing.yaml", "contrail: cannot read missing.yaml: No such file or directory"),
    WrongInput("up -f folder", "contrail: cannot read folder: Is a directory"),
    WrongInput(
        "up -f c_file_misspelt.yaml --print-config",
        "contrail: c_file_misspelt.yaml: there is no such key as `fronted`; did you mean frontend?",
    ),
    WrongInput(
        "up -f c_key_misspelt.yaml --print-config",
        "contrail: c_key_misspelt.yaml: frontend: there is no such key as `replica`; did you mean replicas?",
    ),
    WrongInput(
        "up -f c_group.yaml --print-config",
        "contrail: c_group.yaml: workers[0]: there is no such key as `modle`; did you mean model?",
    ),
    WrongInput(
        "up -f c_routing.yaml --print-config",
        "contrail: c_routing.yaml: routing.own_wait: no such setting; did you mean own_weight?",
    ),
    WrongInput(
        "up -f c_type.yaml --print-config",
        "contrail: c_type.yaml: frontend.replicas: expected a whole number, got text",
    ),
    WrongInput("up -f c_notyaml.yaml --print-config", "contrail: c_notyaml.yaml, line 3: this is not YAML"),
    WrongInput(
        "up -f c_twice.yaml --print-config",
        "contrail: c_twice.yaml, line 2: `version` stands there twice: put both into one",
    ),
    WrongInput(
        "up -f c_version.yaml --print-config",
        "contrail: c_version.yaml: version 3: this Contrail reads version 1",
    ),
    WrongInput(
        "up -f c_list.yaml --print-config",
        "contrail: c_list.yaml: a deployment file is a mapping that begins with `version: 1`",
    ),
    WrongInput(
        "up -f c_unit.yaml --print-config",
        'contrail: c_unit.yaml: log.max_age: expected text, got a whole number: write "7d"',
    ),
    WrongInput(
        "up -f c_engine.yaml --print-config",
        "contrail: c_engine.yaml: workers[0]: engine 'vlm': there are vllm, simulated",
    ),
    WrongInput(
        "up -f c_off.yaml --print-config",
        'contrail: c_off.yaml: log.snapshot_every: expected text, got true or false: write "1h", or "off" '
        "with its quotes",
    ),
    WrongInput("up --json", "Error: --json goes with --print-config"),
    WrongInput(
        "up --port 1 --listen 127.0.0.1:2",
        "contrail: give either --port or --listen HOST:PORT, not both: each names the port",
    ),
    WrongInput(
        "up --listen 8000",
        "contrail: --listen: frontend: listen: '8000' is not an address: write HOST:PORT, such as 127.0.0.1:8000",
    ),
    WrongInput("up --tls-key x.pem", "contrail: --tls-key: give --tls-cert too, the certificate whose key it is"),
    WrongInput(
        "up --keys missing.keys --engine simulated --port 0",
        "contrail: cannot read the API keys in ./missing.keys: No such file or directory",
    ),
    WrongInput('up --namespace "a b"', "contrail: --namespace: namespace 'a b': use 1 to 63 of a-z, 0-9 and '-'"),
    WrongInput('up --served-name ""', "contrail: --served-name: workers[0]: served_name: give at least one name"),
    WrongInput("up --data plain.txt --engine simulated --port 0", "contrail: ./plain.txt is a file: name a folder"),
    WrongInput("up extra", "Error: Got unexpected extra argument (extra)"),
    WrongInput("serve", "Error: No such command 'serve'; did you mean `contrail up`?"),
    WrongInput("serve tiny", "Error: No such command 'serve'; did you mean `contrail up`?"),
    WrongInput("explain", NO_DEPLOYMENT),
    WrongInput("explain req-1 --data nowhere", NO_FOLDER),
    WrongInput(
        "explain req-1 --log missing.contrail",
        "contrail: missing.contrail cannot be read: No such file or directory",
    ),
    WrongInput(
        "explain req-1 --log plain.txt",
        "contrail: plain.txt is no export of a log, or damaged at its start; `contrail export FILE` makes one",
    ),
    WrongInput("explain req-1 --log folder", "contrail: folder cannot be read: Is a directory"),
    WrongInput(
        "explain req-1 --log small.contrail",
        "contrail: the log knows no request 'req-1'; `contrail events --stream routing` lists them",
    ),
    WrongInput(
        "explain ab --log small.contrail",
        "contrail: the log knows no request 'ab'; `contrail events --stream routing` lists them",
    ),
    WrongInput(
        "explain --slowest 0 --log small.contrail",
        "Error: Invalid value for '--slowest': 0 is not in the range x>=1.",
    ),
    WrongInput(
        "explain --slowest ten --log small.contrail",
        "Error: Invalid value for '--slowest': 'ten' is not a valid integer.",
    ),
    WrongInput(
        "explain --last req-1 --log small.contrail",
        "contrail: give REQUEST_ID, or --last, or options that choose requests to list: one of them",
    ),
    WrongInput(
        "explain --outcome failed --log small.contrail",
        "contrail: --outcome failed: no request ends so; there are abort, declined, error, expired, length, stop, "
        "worker_lost, rejected, replica_lost, under_way",
    ),
    WrongInput(
        "explain --worker decode-9 --log small.contrail",
        "contrail: no worker 'decode-9' in this log; there are worker-0, worker-1",
    ),
    WrongInput(
        "explain --worker worker_1 --log small.contrail",
        "contrail: no worker 'worker_1' in this log; there are worker-0, worker-1",
    ),
    WrongInput(
        "explain --replica x --log small.contrail",
        "contrail: no replica 'x' in this log; there are replica-0",
    ),
    WrongInput(
        "explain --model gpt-4 --log small.contrail",
        "contrail: no model 'gpt-4' in this log; there are simulated",
    ),
    WrongInput(
        "explain --session zz --log small.contrail",
        "contrail: the log knows no session 'zz'; without the deployment's key only keys of sessions are known",
    ),
    WrongInput(
        "explain --session zz --turn 3 --log small.contrail",
        "contrail: the log knows no session 'zz'; without the deployment's key only keys of sessions are known",
    ),
    WrongInput(
        "explain --turn 3 --log small.contrail",
        "contrail: --turn counts the requests of a session: give --session, too",
    ),
    WrongInput("explain --from 25:00 --log small.contrail", "contrail: 25:00:00 is no time of day"),
    WrongInput(
        "explain --from yesterday --log small.contrail",
        "contrail: 'yesterday' is no time (14:03, 14:03:05Z, -15m), no sequence (routing:1234), and no "
        "request that this recording knows; `contrail events --stream routing` lists them",
    ),
    WrongInput(
        "explain --from 14h --log small.contrail",
        "contrail: '14h' is no time (14:03, 14:03:05Z, -15m), no sequence (routing:1234), and no request that"
        " this recording knows; `contrail events --stream routing` lists them",
    ),
    WrongInput(
        "explain --slowest 3 --mispredicted 3 --log small.contrail",
        "contrail: give either --slowest or --mispredicted, not both",
    ),
    WrongInput(
        "explain --last --log small.contrail --nats nats://a:1",
        "contrail: give either --log or the addresses of a deployment, not both",
    ),
    WrongInput(
        "explain --last --log small.contrail --key-file badkey",
        "contrail: badkey is not a deployment key (64 hex digits, or a line `N DIGITS` for each generation)",
    ),
    WrongInput(
        "explain --lost --log small.contrail",
        "contrail: --lost is about one request: give REQUEST_ID, or --last, or --session ID --turn N",
    ),
    WrongInput(
        "explain --lost --slowest 3 --log small.contrail",
        "contrail: --lost is about one request: give REQUEST_ID, or --last, or --session ID --turn N",
    ),
    WrongInput(
        "explain --lost --last req-1 --log small.contrail",
        "contrail: give REQUEST_ID, or --last, or options that choose requests to list: one of them",
    ),
    WrongInput(
        "explain --lost --turn 3 --log small.contrail",
        "contrail: --lost is about one request: give REQUEST_ID, or --last, or --session ID --turn N",
    ),
    WrongInput(
        "explain --lost --last --whole --log small.contrail",
        "contrail: --lost is about one request: give REQUEST_ID, or --last, or --session ID --turn N",
    ),
    WrongInput(
        "explain req-1 --lost --log small.contrail",
        "contrail: the log knows no request 'req-1'; `contrail events --stream routing` lists them",
    ),
    WrongInput(
        "explain --lost --session zz --turn 3 --log small.contrail",
        "contrail: the log knows no session 'zz'; without the deployment's key only keys of sessions are known",
    ),
    WrongInput("explain req-1 --lost --data nowhere", NO_FOLDER),
    WrongInput(
        "cache --log small.contrail --by color",
        "Error: Invalid value for '--by': 'color' is not one of 'cause', 'session', 'tenant', 'worker', 'hour'.",
    ),
    WrongInput("cache --log missing", "contrail: missing cannot be read: No such file or directory"),
    WrongInput(
        "events --log small.contrail --type RequestRoute",
        "contrail: --type RequestRoute: there is no such event; did you mean RequestRouted?",
    ),
    WrongInput(
        "events --log small.contrail --stream routin",
        "contrail: there is no stream 'routin'; there are kv_0, load, routing",
    ),
    WrongInput(
        "events --log small.contrail --worker decode-9",
        "contrail: the log has no worker 'decode-9'; there are worker-0, worker-1",
    ),
    WrongInput(
        "events --log small.contrail --follow",
        "contrail: --follow is for a running deployment: this log does not grow",
    ),
    WrongInput(
        "events --log small.contrail --request zzzz",
        "contrail: 'zzzz' is no time (14:03, 14:03:05Z, -15m), no sequence (routing:1234), and no request "
        "that the log knows; `contrail events --stream routing` lists them",
    ),
    WrongInput(
        "events --log small.contrail --from -5m --to -10m",
        "contrail: --from -5m is not before --to -10m: nothing lies between",
    ),
    WrongInput("replay verfy", "Error: No such command 'verfy'; did you mean verify?"),
    WrongInput("replay verify --log missing", "contrail: missing cannot be read: No such file or directory"),
    WrongInput(
        "replay verify --log small.contrail --from nonsense:5",
        "contrail: 'nonsense:5' is no time (14:03, 14:03:05Z, -15m), no sequence (routing:1234), and no "
        "request that this recording knows; `contrail events --stream routing` lists them",
    ),
    WrongInput(
        "replay verify --log small.contrail --replica r9",
        "contrail: no replica 'r9' in this log; there are replica-0",
    ),
    WrongInput("replay at --log small.contrail", "Error: Missing argument 'MOMENT'."),
    WrongInput("replay at 14:99 --log small.contrail", "contrail: 14:99:00 is no time of day"),
    WrongInput("replay at 99:03 --log small.contrail", "contrail: 99:03:00 is no time of day"),
    WrongInput(
        "replay at -15x --log small.contrail",
        "contrail: '-15x' is no time (14:03, 14:03:05Z, -15m), no sequence (routing:1234), and no request "
        "that this recording knows; `contrail events --stream routing` lists them",
    ),
    WrongInput(
        "replay at routing:5 --log small.contrail --tokens a,b",
        "contrail: blocks are hashed with the deployment's key: give --key-file FILE, a copy of `key` from "
        "its data folder",
    ),
    WrongInput(
        "replay at routing:5 --log small.contrail --prompt missing.txt",
        "contrail: blocks are hashed with the deployment's key: give --key-file FILE, a copy of `key` from "
        "its data folder",
    ),
    WrongInput(
        "replay at routing:5 --log small.contrail --prompt plain.txt",
        "contrail: blocks are hashed with the deployment's key: give --key-file FILE, a copy of `key` from "
        "its data folder",
    ),
    WrongInput(
        "replay at routing:5 --log small.contrail --replica x",
        "contrail: no replica 'x' in this log; there are replica-0",
    ),
    WrongInput(
        "replay what-if --log small.contrail --set own_weight",
        "contrail: 'own_weight' is not KEY=VALUE, or several of them with commas between",
    ),
    WrongInput(
        "replay what-if --log small.contrail --set own_wight=4",
        "contrail: routing.own_wight: no such setting; did you mean own_weight?",
    ),
    WrongInput(
        "replay what-if --log small.contrail --set own_weight=abc",
        "contrail: routing.own_weight: 'abc' is not a number",
    ),
    WrongInput(
        "replay what-if --log small.contrail --policy fastest",
        "contrail: routing.policy: 'fastest' is none of kv, round-robin, random, least-loaded, time, power-"
        "of-two, session, approximate",
    ),
    WrongInput(
        "replay what-if --log small.contrail --policy round_robin",
        "contrail: routing.policy: 'round_robin' is none of kv, round-robin, random, least-loaded, time, "
        "power-of-two, session, approximate; did you mean round-robin?",
    ),
    WrongInput(
        "replay what-if --log small.contrail --sweep own_weight",
        "contrail: --sweep: 'own_weight' is not KEY=VALUE,VALUE,…",
    ),
    WrongInput(
        "replay what-if --log small.contrail --model m",
        "contrail: --engine, --model, --open-arrivals, --seed and --jobs are of simulated runs: add --closed-loop",
    ),
    WrongInput(
        "replay what-if --log small.contrail --closed-loop --worst 3",
        "contrail: --worst is of decisions made again on the record: with --closed-loop, leave it out",
    ),
    WrongInput(
        "replay what-if --log small.contrail --closed-loop --engine max_seq=3",
        "contrail: engine_args: the simulated engine does not know max_seq; did you mean max_seqs?",
    ),
    WrongInput(
        "replay what-if --log small.contrail --closed-loop --model nope",
        "contrail: no request of the model 'nope' in this part of the record can be run again: none is there",
    ),
    WrongInput(
        "replay bisect --log small.contrail --set own_wight=4",
        "contrail: routing.own_wight: no such setting; did you mean own_weight?",
    ),
    WrongInput(
        "replay bisect --log small.contrail --replica x",
        "contrail: no replica 'x' in this log; there are replica-0",
    ),
    WrongInput("replay bisect --log small.contrail a b c d", "Error: Got unexpected extra arguments (a b c d)"),
    WrongInput(
        "replay open --log missing --no-browser",
        "contrail: missing cannot be read: No such file or directory",
    ),
    WrongInput(
        "replay open --log small.contrail --port 99999",
        "Error: Invalid value for '--port': 99999 is not in the range 0<=x<=65535.",
    ),
    WrongInput("export", "Error: Missing argument 'FILE'."),
    WrongInput("export folder --log small.contrail", "contrail: folder is a folder: name a file"),
    WrongInput(
        "export small.jsonl --log small.contrail",
        "contrail: small.jsonl exists: name another file, or overwrite it with --force",
    ),
    WrongInput(
        "export nowhere/x --log small.contrail",
        "contrail: nowhere/x cannot be written: there is no folder nowhere",
    ),
    WrongInput(
        "export out.contrail --log small.contrail --from -1m --to -2m",
        "contrail: the log has nothing between these moments: it reaches from 2026-01-01T00:00:00.000Z to "
        "2026-01-01T00:00:07.876Z, and asked for is what lies from 2025-12-31T23:59:07.876Z up to "
        "2025-12-31T23:58:07.876Z (UTC)",
    ),
    WrongInput("simulate", "Error: Missing argument 'TRACE'."),
    WrongInput("simulate missing.jsonl", "contrail: missing.jsonl cannot be read: No such file or directory"),
    WrongInput(
        "simulate empty.jsonl",
        "contrail: empty.jsonl has no request: each line must be one in Mooncake's format",
    ),
    WrongInput(
        "simulate odd.jsonl",
        "contrail: odd.jsonl, line 1: no request in Mooncake's format: Object missing required field `timestamp`",
    ),
    WrongInput(
        "simulate plain.txt",
        "contrail: plain.txt, line 1: no request in Mooncake's format: JSON is malformed: invalid character (byte 0)",
    ),
    WrongInput(
        "simulate small.jsonl --format moncake",
        "Error: Invalid value for '--format': 'moncake' is not one of 'auto', 'mooncake', 'recording'.",
    ),
    WrongInput(
        "simulate small.jsonl --format mooncake --workers 0",
        "contrail: workers must be from 1 to 4096, not 0",
    ),
    WrongInput(
        "simulate small.jsonl --format mooncake --workers 0.5",
        "Error: Invalid value for '--workers': '0.5' is not a valid integer.",
    ),
    WrongInput(
        "simulate small.jsonl --format mooncake --set own_wight=4",
        "contrail: routing.own_wight: no such setting; did you mean own_weight?",
    ),
    WrongInput(
        "simulate small.jsonl --format mooncake --engine-set max_seq=4",
        "contrail: engine_args: the simulated engine does not know max_seq; did you mean max_seqs?",
    ),
    WrongInput(
        "simulate small.jsonl --format mooncake --policy fastest",
        "contrail: routing.policy: 'fastest' is none of kv, round-robin, random, least-loaded, time, power-"
        "of-two, session, approximate",
    ),
    WrongInput(
        "simulate small.jsonl --format mooncake --out small.contrail",
        "contrail: small.contrail exists: name another file, or overwrite it with --force",
    ),
    WrongInput(
        "simulate small.jsonl --format mooncake --speed-up 0",
        "contrail: speed-up: 0 is not between 0.001 and 1000",
    ),
    WrongInput(
        "simulate small.jsonl --format mooncake --lag x",
        "Error: Invalid value for '--lag': 'x' is not a valid integer.",
    ),
    WrongInput("settings show --data nowhere", NO_FOLDER),
    WrongInput("settings shw", "Error: No such command 'shw'; did you mean show?"),
    WrongInput("doctor --data nowhere", NO_FOLDER),
    WrongInput(
        "doctor --nats nats://127.0.0.1:9",
        "contrail: which deployment? Give --data DIR, or -f FILE that has log.nats and log.etcd, or --nats "
        "URL and --etcd HOST:PORT; with addresses also --key-file FILE",
    ),
    WrongInput(
        "doctor --nats nats://127.0.0.1:9 --etcd 127.0.0.1:9",
        "contrail: give --key-file FILE: a copy of `key` from the deployment's data folder",
    ),
    WrongInput(
        "doctor --data nowhere --nats nats://127.0.0.1:9",
        "contrail: give either --data or addresses (--nats, --etcd, --namespace, --file), not both",
    ),
    WrongInput("keys create", "Error: Missing option '--file'."),
    WrongInput("keys revoke", "Error: Missing argument 'NAME'."),
    WrongInput('frontend --name "A B"', "contrail: --name 'A B': use 1 to 63 of a-z, 0-9 and '-'"),
    WrongInput("frontend --listen nonsense --data nowhere", NO_FOLDER),
    WrongInput("worker", "Error: Missing option '--model'."),
    WrongInput("worker --model tiny --data nowhere", NO_FOLDER),
    WrongInput(
        "worker --model tiny --engine vlm",
        "Error: Invalid value for '--engine': 'vlm' is not one of 'vllm', 'simulated'.",
    ),
    WrongInput(
        "prefill-worker --model tiny --slots 0",
        "Error: Invalid value for '--slots': 0 is not in the range 1<=x<=64.",
    ),
    WrongInput(
        "restart --data nowhere",
        "contrail: no deployment runs with the data folder nowhere: name another folder with --data",
    ),
    WrongInput("replicas --data nowhere", NO_FOLDER),
    WrongInput("nats accounts", "Error: Missing argument 'FOLDER'."),
    WrongInput("nats accounts plain.txt", "Error: Invalid value for 'FOLDER': Directory 'plain.txt' is a file."),
    WrongInput("nats streams", NO_DEPLOYMENT),
    WrongInput("deployment-key rotate --data nowhere", "contrail: there is no data folder nowhere"),
    WrongInput(
        "CONTRAIL_PORT=tcp://10.0.0.1:80 up --print-config",
        "contrail: CONTRAIL_PORT: 'tcp://10.0.0.1:80' is not a whole number: Kubernetes sets such a variable "
        "for a Service of that name; `enableServiceLinks: false` keeps it out",
    ),
    WrongInput("CONTRAIL_WORKERS=two up --print-config", "contrail: CONTRAIL_WORKERS: 'two' is not a whole number"),
    WrongInput(
        "CONTRAIL_POLICY=fastest up --print-config",
        "contrail: CONTRAIL_POLICY: routing.policy: 'fastest' is none of kv, round-robin, random, least-"
        "loaded, time, power-of-two, session, approximate",
    ),
    WrongInput(
        "CONTRAIL_MODEL= up --print-config",
        "contrail: CONTRAIL_MODEL: workers[0]: model: give `tiny`, a folder, or a name on the Hugging Face hub",
    ),
    WrongInput(
        "CONTRAIL_LISTEN=8000 up --print-config",
        "contrail: CONTRAIL_LISTEN: frontend: listen: '8000' is not an address: write HOST:PORT, such as "
        "127.0.0.1:8000",
    ),
    WrongInput(
        "CONTRAIL_PROT=8000 up --data plain.txt --engine simulated --port 0",
        "Note: CONTRAIL_PROT is no variable of Contrail's and changes nothing; did you mean CONTRAIL_PORT?",
    ),
    WrongInput(
        "CONTRAIL_TLS_KEY=k.pem up --print-config",
        "contrail: CONTRAIL_TLS_KEY: give CONTRAIL_TLS_CERT too, the certificate whose key it is",
    ),
    WrongInput("settings set --data nowhere own_weight", NO_FOLDER),
    WrongInput("keys create --file new.keys", "Error: Missing option '--tenant'."),
    WrongInput(
        'keys create --file new.keys --tenant "a b"',
        "contrail: --tenant: use 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'",
    ),
    WrongInput(
        "keys create --file new.keys --tenant a --priority 1",
        "contrail: --priority '1': give the lowest and the highest, with 0 between them, such as -10:10",
    ),
    WrongInput(
        "keys create --file new.keys --tenant a --expires soon",
        "contrail: --expires 'soon': give a duration (90d), or a moment (2027-01-01T00:00:00Z)",
    ),
    WrongInput(
        "keys list --file missing.keys",
        "contrail: cannot read the API keys in missing.keys: No such file or directory",
    ),
    WrongInput(
        "keys revoke --file missing.keys team-a",
        "contrail: cannot read the API keys in missing.keys: No such file or directory",
    ),
    WrongInput(
        "deployment-key forget x --data nowhere",
        "Error: Invalid value for 'GENERATION': 'x' is not a valid integer.",
    ),
    WrongInput(
        "deployment-key rotate --data nowhere --key-file x",
        "contrail: give either --data or --key-file, not both",
    ),
    WrongInput("snapshots verfy", "Error: No such command 'verfy'; did you mean verify?"),
    WrongInput("nats account folder", "Error: No such command 'account'; did you mean accounts?"),
    WrongInput("debug --data nowhere", NO_FOLDER),
    WrongInput("replicas --watch --data nowhere", NO_FOLDER),
)


class WrongBody(NamedTuple):
    """One body for the API of a running deployment."""

    path: str
    body: str
    status: int
    answer: str
    """The error's message."""


WRONG_BODIES = (
    WrongBody("/v1/chat/completions", '{"messages":[{"role":"user","content":"hi"}]}', 400, "model: is required"),
    WrongBody("/v1/chat/completions", '{"model":"tiny"}', 400, "messages: is required"),
    WrongBody(
        "/v1/chat/completions",
        '{"model":"tiny","messages":[]}',
        400,
        "messages: must hold at least one message",
    ),
    WrongBody(
        "/v1/chat/completions",
        '{"model":"tiny","messages":"hi"}',
        400,
        "messages: must be a list, not a string",
    ),
    WrongBody(
        "/v1/chat/completions",
        "{'model': 'tiny'}",
        400,
        "the request body is not valid JSON: JSON is malformed: object keys must be strings (byte 1)",
    ),
    WrongBody("/v1/chat/completions", "", 400, "the request body is empty: send a JSON object"),
    WrongBody(
        "/v1/chat/completions",
        '{"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":-1}',
        400,
        "max_tokens: must be at least 0",
    ),
    WrongBody(
        "/v1/chat/completions",
        '{"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":"ten"}',
        400,
        "max_tokens: must be an integer, not a string",
    ),
    WrongBody(
        "/v1/chat/completions",
        '{"model":"tiny","messages":[{"role":"user","content":"hi"}],"temperature":5}',
        400,
        "temperature: must be between 0 and 2",
    ),
    WrongBody(
        "/v1/chat/completions",
        '{"model":"tiny","messages":[{"role":"user","content":"hi"}],"stream":"yes"}',
        400,
        "stream: must be true or false, not a string",
    ),
    WrongBody(
        "/v1/chat/completions",
        '{"model":"tiny","messages":[{"role":"usr","content":"hi"}]}',
        400,
        "messages[0].role: must be one of system, developer, user, assistant, tool",
    ),
    WrongBody(
        "/v1/chat/completions",
        '{"model":"tiny","messages":[{"role":"user","content":"hi"}],"n":0}',
        400,
        "n: must be from 1 to 128",
    ),
    WrongBody(
        "/v1/chat/completions",
        '{"model":"tiny","messages":[{"role":"user","content":"hi"}],"top_p":2}',
        400,
        "top_p: must be above 0 and at most 1",
    ),
    WrongBody("/v1/completions", '{"model":"tiny"}', 400, "prompt: is required"),
    WrongBody(
        "/v1/completions",
        '{"model":"Tiny","prompt":"hi"}',
        404,
        "there is no model 'Tiny' here; /v1/models lists what there is",
    ),
    WrongBody(
        "/v1/chat/completion",
        '{"model":"tiny","messages":[{"role":"user","content":"hi"}]}',
        404,
        "there is no /v1/chat/completion here; see /v1/models, /v1/chat/completions, /v1/completions",
    ),
    WrongBody(
        "/chat/completions",
        '{"model":"tiny","messages":[{"role":"user","content":"hi"}]}',
        404,
        "there is no /chat/completions here; see /v1/models, /v1/chat/completions, /v1/completions",
    ),
    WrongBody("/tokenize", '{"model":"tiny"}', 400, "prompt: give either prompt or messages"),
    WrongBody("/v1/embeddings", '{"model":"tiny"}', 400, "input: is required"),
    WrongBody("/v1/responses", '{"model":"tiny"}', 400, "input: is required"),
)
"""With `content-type: application/json`."""
