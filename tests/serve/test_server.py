"""HTTP server: the answers of a predictor, and readable errors."""

import asyncio
import html
import http.client
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest
import torch

import tgflow as tg
from helpers.served import Client, Held, made_predictor, read_all, served
from tgflow.run.machine import rss_bytes
from tgflow.serve.answers import Answers
from tgflow.serve.predictor import Predictor
from tgflow.serve.questions import QUESTIONS, AlertQuestion, Refused, ScoreQuestion, TopQuestion
from tgflow.train.alerts import AlertList

server_module = pytest.importorskip("tgflow.serve.server", reason="uvicorn is not installed")

TOKEN = "0123456789abcdef"
VERSION = {"position": 60, "parameters": 60}
JSON = b"Content-Type: application/json\r\n"


@pytest.fixture(scope="module")
def predictor():
    return made_predictor()


@pytest.fixture(scope="module")
def server(predictor):
    with served(predictor, hosts=["x"], max_body=2_000, max_pairs=20) as server:
        yield server
    assert not server.faults


@pytest.fixture
def client(server):
    client = Client(server.endpoint.url)
    yield client
    client.close()


def test_scores_equal_those_of_the_predictor(predictor, client):
    src, dst = ["n0", "n1", "n0"], ["n6", "n7", "n8"]
    status, answer = client.post("/score", {"src": src, "dst": dst})
    assert status == 200
    expected = predictor.score(src, dst).to_arrow().to_pylist()
    assert answer == VERSION | {"scores": expected}
    assert expected[0]["anomaly"] is None
    status, answer = client.post("/score", {"src": src, "dst": dst, "at": [9000, 9500, 10_000]})
    found = [row["logit"] for row in answer["scores"]]
    assert found == predictor.score(src, dst, [9000, 9500, 10_000]).logit.tolist()
    iso = {"src": ["n0"], "dst": ["n6"], "at": "1970-01-01T02:30:00Z"}
    status, answer = client.post("/score", iso)
    assert answer["scores"][0]["logit"] == predictor.score("n0", "n6", 9000).logit.item()


def test_metrics_are_read_again_while_a_replica_makes_its_files(tmp_path):
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    from tgflow.serve.app import exported

    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path))
    file = tmp_path / "counter_1.db"
    file.touch()
    timer = threading.Timer(0.1, file.write_bytes, [bytes(4096)])
    timer.start()
    assert asyncio.run(exported(registry)) == b""
    timer.join()


def test_health_metrics_and_schema_pages(server, client):
    health = VERSION | {"state": "following", "behind": 0, "age": 0.0}
    assert client.get("/healthz") == client.get("/ready") == (200, health)
    client.post("/score", {"src": ["n0"], "dst": [1]})
    status, page = client.get("/metrics")
    assert status == 200
    assert re.search(r'tgflow_serve_requests_total\{path="/score",status="422"\} \d', page)
    assert 'tgflow_serve_seconds_bucket{le="0.001",path="/healthz"}' in page
    status, api = client.get("/openapi.json")
    assert set(api["paths"]) == {
        *(kind.path for kind in QUESTIONS),
        "/labels",
        "/healthz",
        "/ready",
        "/metrics",
    }
    assert api["security"] == [{"HTTPBearer": []}]
    status, page = client.get("/docs")
    assert status == 200
    assert not re.search(r'src=|<link|href="(?!\./"|openapi\.json"|#)', page), "another file"
    names = set(re.findall(r'href="#([^"]+)"', page))
    assert {"ScoreAnswer", "EventScore", "ExplainAnswer", "PastEvent"} <= names
    assert names <= set(re.findall(r'id="([^"]+)"', page))
    for kind in POSTED:
        command = rf"curl -d '(.*)' {server.endpoint.url}{kind.path}</pre>"
        assert kind.model_validate_json(html.unescape(re.search(command, page)[1]))
        assert all(f"<code>{field}</code>" in page for field in kind.model_fields)
    status, page = client.get("/")
    assert (status, client.headers.get_content_type()) == (200, "text/html")
    parts = ("Likeliest destinations", "made · run", "prefers-color-scheme", "features as JSON")
    assert all(part in page for part in parts)


def test_labels_are_added_with_a_token_of_their_own(predictor, client):
    bodies = []

    def add(body):
        bodies.append(body)
        return 200, b'{"added": 1}'

    labels = {"labels": [{"event_id": "e1", "label": 1}]}
    status, answer = client.post("/labels", labels)
    assert (status, "read-only; labels are added to a run" in answer["detail"]) == (403, True)
    own = "another-" + TOKEN
    with served(predictor, TOKEN, add_labels=add, label_token=own, max_body=99) as server:
        client = Client(server.endpoint.url)
        ask = partial(client.request, headers={"Authorization": f"Bearer {own}"})
        assert ask("POST", "/labels", json.dumps(labels).encode()) == (200, {"added": 1})
        assert ask("POST", "/labels", b"1" * 100)[0] == 413
        assert (ask("GET", "/labels")[0], ask("GET", "/metrics")[0]) == (405, 401)
        for token in (TOKEN, ""):
            headers = {"Authorization": f"Bearer {token}"}
            assert client.request("POST", "/labels", b"", headers=headers)[0] == 401
        client.close()
    assert [json.loads(body) for body in bodies] == [labels]


def test_replica_is_not_ready_while_too_far_behind(predictor):
    with served(predictor, max_lag=10) as server:
        client = Client(server.endpoint.url)
        for behind, status in ((0, 200), (10, 200), (11, 503)):
            server.behind = behind
            found, answer = client.get("/ready")
            assert (found, answer["behind"]) == (status, behind)
            assert client.get("/healthz")[0] == 200
        client.close()


def test_ids_never_seen_are_scored_as_at_their_first_events(predictor, client):
    asked = {"src": ["n0", "who", "n0"], "dst": ["n6", "n6", "what"]}
    status, answer = client.post("/score", asked)
    assert status == 200
    assert answer["scores"] == predictor.score(**asked).to_pylist()
    assert [row["new"] for row in answer["scores"]] == [None, "src", "dst"]
    status, answer = client.post("/top-k", {"src": ["who", "n0"], "candidates": ["x", "n6"]})
    rows = {(row["src"], row["dst"]): row for row in answer["scores"]}
    assert rows["who", "x"]["new"] == "both"
    assert rows["who", "n6"]["logit"] == predictor.score("who", "n6").logit.item()
    assert answer["scores"] == predictor.top_k(["who", "n0"], candidates=["x", "n6"]).to_pylist()
    assert [row["ranked_by"] for row in answer["scores"]] == 2 * ["popularity"] + 2 * ["model"]
    ranked = client.post("/top-k", {"src": ["who"], "exclude_known": True})[1]["scores"]
    assert [row["place"] for row in ranked] == [*range(1, len(ranked) + 1)]
    status, answer = client.post("/embedding", {"ids": ["who", "n3"]})
    assert [row["is_new"] for row in answer["embeddings"]] == [True, False]
    assert answer["embeddings"][0]["embedding"] == predictor.embed("any").tolist()[0]
    status, answer = client.post("/neighbors", {"ids": ["who"]})
    assert answer == VERSION | {"neighbors": []}
    assert client.post("/score", {"src": [""], "dst": ["n6"]})[0] == 422


def test_neighbors_are_the_latest_events(predictor, client):
    status, answer = client.post("/neighbors", {"ids": ["n0", "n6"], "k": 2, "at": 140})
    assert status == 200
    log = predictor.graph.log.read(0, 60)
    expected = []
    for node in (0, 6):
        ends = zip(log.src.tolist(), log.dst.tolist(), log.t.tolist(), strict=True)
        own = [i for i, (src, dst, t) in enumerate(ends) if node in (src, dst) and t < 140]
        for i in own[::-1][:2]:
            other = int(log.dst[i]) if int(log.src[i]) == node else int(log.src[i])
            expected.append(
                {"id": f"n{node}", "neighbor": f"n{other}", "t": int(log.t[i]), "position": i}
            )
    assert answer["neighbors"] == expected


PAIR = {"src": ["n0"], "dst": ["n6"]}


@pytest.mark.parametrize(
    ("path", "question", "status", "said"),
    [
        ("/neighbors", {"ids": ["n0"], "k": 1_001}, 422, "k: input should be less than or"),
        ("/neighbors", {"ids": ["n0"], "k": 30}, 422, "30 nodes are more than 20"),
        ("/score", PAIR | {"x": [[1.0, 2.0]]}, 422, "no score of made reads the features"),
        ("/score", PAIR | {"x": {"f": 1}}, 422, "no score of made reads the features"),
        ("/score", {"src": [1], "dst": [2]}, 422, "integers but this map's ids are strings"),
        ("/score", {"src": ["n0"], "dst": ["n6", "n7"]}, 422, "must have one length, got 1 and 2"),
        ("/score", PAIR | {"at": 0.5}, 422, "0.5 s is between two ticks"),
        ("/score", PAIR | {"at": [1, 2]}, 422, "one for each of 1, got 2"),
        ("/score", PAIR | {"at": "soon"}, 422, "at: input should be a valid integer, or"),
        ("/score", PAIR | {"at": 2**70}, 422, "is not a time: ticks are whole numbers of 64 bits"),
        ("/score", {"src": ["n0"]}, 422, "dst is missing; /docs lists the fields"),
        ("/score", {"src": [], "dst": []}, 422, "src: list should have at least 1 item"),
        ("/score", {"src": "n0", "dst": ["n6"]}, 422, "src: input should be a valid array"),
        ("/score", {"src": [None], "dst": ["n6"]}, 422, "src.0: input should be a valid integer"),
        ("/score", PAIR | {"when": 1}, 422, "when is not a field of this question"),
        ("/top-k", {"src": ["n0"], "k": 0}, 422, "k: input should be greater than or equal to 1"),
        ("/top-k", {"src": ["n0"] * 4}, 422, "4 sources with 6 candidates each are more than 20"),
        ("/score", {"src": ["n0"] * 21, "dst": ["n6"] * 21}, 422, "21 pairs are more than 20"),
        ("/explain", {"src": ["n0"], "dst": "n6"}, 422, "src: input should be a valid integer, or"),
        ("/explain", {"src": "n0", "dst": 6}, 422, "integers but this map's ids are strings"),
        ("/explain", {"src": "n0", "dst": "n6", "at": [1]}, 422, "at: input should be a valid"),
        ("/embedding", {"ids": ["n0"] * 21}, 422, "21 nodes are more than 20"),
        ("/embedding", {"ids": ["n0"], "side": "left"}, 422, "side: input should be 'src' or"),
        ("/score", b"{", 422, "the body is not JSON"),
        ("/score", b"[1]", 422, "the body must be a JSON object"),
        ("/score", b"", 422, "the body is not JSON: EOF"),
        ("/score", b'{"src": ["\\ud800"], "dst": ["n6"]}', 422, "unexpected end of hex escape"),
        ("/score", b"\xff\xfe", 422, "the body"),
        ("/score", b'{"src": ["n0"], "dst": ["n6"], "at": NaN}', 422, "at: input should be"),
        ("/score", b"x" * 2_001, 413, "the body has more than 2,000 bytes"),
        ("/nothing", PAIR, 404, "POST /nothing: Not Found; /docs shows what can be asked"),
        ("/healthz", PAIR, 405, "POST /healthz: Method Not Allowed"),
    ],
)
def test_request_errors_are_readable(client, path, question, status, said):
    found, answer = client.post(path, question)
    assert found == status, answer
    assert set(answer) == {"detail"}
    assert said in answer["detail"]
    assert "Traceback" not in answer["detail"]
    assert client.post("/score", PAIR)[0] == 200, "the connection goes on"


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"POST /score HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"A" * 200_000,
    ],
)
def test_invalid_http_closes_only_its_connection(client, data):
    connection = client.raw()
    try:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = read_all(connection)
    except OSError:  # the server has closed the connection
        answer = b""
    assert not answer or answer.startswith(b"HTTP/1.1 4")
    assert client.post("/score", PAIR)[0] == 200


HEAD = b"POST /score HTTP/1.1\r\nHost: x\r\n" + JSON


POSTED = [kind for kind in QUESTIONS if kind.method == "POST"]


def described(schema):
    """Return a schema without its texts."""
    if isinstance(schema, list):
        return [described(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    texts = ("title", "description", "examples")
    return {k: described(x) for k, x in schema.items() if k not in texts or isinstance(x, dict)}


def check_answer(answer, schema, schemas):
    """Assert that an answer has the fields of its schema, and so have all parts of it."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
        assert set(schema.get("required", schema["properties"])) <= set(answer)
        assert set(answer) <= set(schema["properties"])
        for name, value in answer.items():
            check_answer(value, schema["properties"][name], schemas)
    for each in answer if isinstance(answer, list) else ():
        check_answer(each, schema.get("items", {}), schemas)


@pytest.mark.parametrize("kind", POSTED, ids=lambda kind: kind.__name__)
def test_openapi_document_describes_questions_and_answers(client, kind):
    api = client.get("/openapi.json")[1]
    schemas, entry = api["components"]["schemas"], api["paths"][kind.path]["post"]
    asked = entry["requestBody"]["content"]["application/json"]["schema"]
    assert asked == {"$ref": f"#/components/schemas/{kind.__name__}"}
    schema = schemas[kind.__name__]
    assert described(schema) == described(kind.model_json_schema())
    assert all("description" in x for x in schema["properties"].values())
    question = json.loads(json.dumps(schema["examples"][0]).replace("acc_9", "n0"))
    status, answer = client.post(kind.path, question)
    assert status == 200
    schema = entry["responses"]["200"]["content"]["application/json"]["schema"]
    check_answer(answer, schema, schemas)
    refused = {status for status in entry["responses"] if status != "200"}
    assert refused == {"401", "403", "404", "408", "413", "422", "429", "503"}
    assert refused <= set(api["components"]["responses"])


def test_alerts_are_asked_by_the_query_of_a_url(predictor):
    with served(predictor) as server:
        client = Client(server.endpoint.url)
        status, answer = client.get("/alerts")
        assert status == 422
        assert "made raises no alerts: they need a task of labels and --alert-budget" in str(answer)
        eid, share = torch.tensor([3, 7, 20]), torch.tensor([0.5, 0.75, 0.25]).double()
        predictor.alerts = AlertList().extended(eid, share)
        rows = [row["position"] for row in client.get("/alerts")[1]["alerts"]]
        assert rows == [20, 7, 3]
        t = predictor.time_of(int(predictor.graph.log.read(7, 8).t))
        status, answer = client.get(f"/alerts?since={t}&limit=1")
        assert (status, answer["num_alerts"], len(answer["alerts"])) == (200, 2, 1)
        api = client.get("/openapi.json")[1]
        schemas, entry = api["components"]["schemas"], api["paths"]["/alerts"]["get"]
        assert {each["name"] for each in entry["parameters"]} == {*AlertQuestion.model_fields}
        content = entry["responses"]["200"]["content"]["application/json"]
        check_answer(answer, content["schema"], schemas)
        page = html.unescape(client.get("/docs")[1])
        assert f"curl '{server.endpoint.url}/alerts?since=2024-05-01&limit=20'" in page
        with tg.serve.Client(server.endpoint.url) as asking:
            assert asking.alerts(since=t, limit=1)["alerts"] == answer["alerts"]
            with pytest.raises(tg.serve.AnswerError, match="422: src and dst are needed, or the"):
                asking.ask("/explain", src="n0")
        for query, text in (
            ("limit=0", "limit: input should be greater than or equal to 1"),
            ("limit=many", "limit: input should be a valid integer"),
            ("since=soon", "'soon' is not a time"),
            ("after=3", "after is not a field"),
        ):
            status, answer = client.get(f"/alerts?{query}")
            assert (status, text in answer["detail"]) == (422, True), answer
        assert client.post("/alerts", {})[0] == 405
        client.close()


@pytest.mark.parametrize("path", ["/", "/healthz", "/metrics", "/openapi.json", "/score", "/none"])
def test_requests_of_pages_of_other_hosts_are_refused(client, path):
    own = f"127.0.0.1:{client.port}"
    question = ("POST", path, json.dumps(PAIR).encode()) if path == "/score" else ("GET", path)
    evil = [{"Host": f"evil.example:{client.port}"}, {"Origin": "http://evil.example"}]
    for headers in [
        *evil,
        {"Host": "127.0.0.1:1"},
        {"Origin": "null"},
        {"Origin": f"http://{own}1"},
    ]:
        status, answer = client.request(*question, headers=headers)
        assert status == 403
        assert "start the server with --serve-hosts NAME" in answer["detail"]
        assert next(iter(headers.values())) in answer["detail"]
    expected = 404 if path == "/none" else 200
    local = f"http://LOCALHOST:{client.port}"
    for headers in [{}, {"Host": "x:1"}, {"Origin": f"http://{own}"}, {"Origin": local}]:
        assert client.request(*question, headers=headers)[0] == expected
    for heads in (b"", b"Host: x\r\nHost: x\r\n"):
        request = b"GET %s HTTP/1.1\r\n%sConnection: close\r\n\r\n" % (path.encode(), heads)
        assert b" 403 " in read_all(client.raw(request))


ENDLESS = {
    "header": (b"GET / HTTP/1.1\r\nHost: x\r\nName: ", b"x" * 65_536, b" 431 "),
    "headers": (b"GET / HTTP/1.1\r\nHost: x\r\n", b"Name: x\r\n" * 6_554, b" 431 "),
    "URL": (b"GET /", b"x" * 65_536, b" 414 "),
    "trailer": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nName: ", b"x" * 65_536, b""),
    "trailers": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"Name: x\r\n" * 6_554, b""),
    "pipeline": (b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 2_000, b""),
    "nothing": (b"", b"\r\n" * 32_768, b" 431 "),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_endless_heads_take_no_memory_and_delay_nobody(client, what):
    """What precedes a question has limits: 4 x 64 MiB are sent, or would be."""
    begin, part, status = ENDLESS[what]
    before, sent = rss_bytes(), [0] * 4

    def send(i):
        with client.raw(begin) as connection:
            connection.settimeout(20)
            with suppress(ConnectionError):
                while sent[i] < 64 << 20:
                    connection.sendall(part)
                    sent[i] += len(part)
            with suppress(ConnectionError):
                return connection.recv(65_536)
        return b""

    with ThreadPoolExecutor(4) as pool:
        sending = [pool.submit(send, i) for i in range(4)]
        while not all(each.done() for each in sending):
            began = time.perf_counter()
            assert client.post("/score", PAIR)[0] == 200
            assert time.perf_counter() - began < 2.0
    assert max(sent) < 32 << 20, "the rest is not read"
    assert rss_bytes() - before < 24 << 20
    with client.raw(begin + part[:40_000] + b"\r\n\r\n") as connection:
        assert status in connection.recv(65_536)


def test_connections_are_limited(predictor, monkeypatch):
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 3)
    with served(predictor) as server:
        clients = [Client(server.endpoint.url) for _ in range(3)]
        assert [client.get("/healthz")[0] for client in clients] == [200] * 3
        answer = read_all(clients[0].raw())
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"there are 3 connections already" in answer
        clients.pop().close()
        assert until_accepted(server.endpoint.url)
        for client in clients:
            client.close()


def until_accepted(url):
    """Return whether a new connection is answered, once a closed one is gone."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        client = Client(url)
        with suppress(OSError, http.client.HTTPException):
            if client.get("/healthz")[0] == 200:
                return True
        client.close()
    return False


def test_client_that_does_not_read_is_disconnected(predictor):
    with (
        served(predictor, hosts=["x"], timeout=0.2) as server,
        Client(server.endpoint.url).raw() as connection,
        pytest.raises(ConnectionError),
    ):
        send_without_end(connection, b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 8)


def send_without_end(connection, data):
    connection.settimeout(20)
    while True:
        connection.sendall(data)


def test_body_without_a_length_is_limited(client):
    chunk = b"400\r\n" + b" " * 0x400 + b"\r\n"
    with client.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + 2 * chunk) as connection:
        assert b" 413 " in connection.recv(65_536)


def test_disconnected_clients_do_not_affect_others(client):
    head = HEAD + b"Content-Length: 500\r\n\r\n"
    for data in (b"", head[:20], head, head + b"{"):
        client.raw(data).close()
    assert client.post("/score", PAIR)[0] == 200


def test_configured_token_is_required(predictor):
    with served(predictor, TOKEN) as server:
        for token, expected in ((None, 401), (TOKEN[:-1], 401), (TOKEN, 200)):
            client = Client(server.endpoint.url, token)
            status, answer = client.post("/score", PAIR)
            assert status == expected
            if expected == 401:
                assert client.headers["WWW-Authenticate"] == "Bearer"
                assert "send the header Authorization: Bearer TOKEN" in answer["detail"]
            assert client.get("/metrics")[0] == expected
            assert client.get("/healthz")[0] == 200
            assert client.get("/openapi.json")[0] == 200
            client.close()


def asking(url, question=PAIR):
    client = Client(url)
    try:
        return client.post("/score", question)
    finally:
        client.close()


def until_waiting(url, num):
    """Wait until so many requests are queued."""
    client = Client(url)
    while f"tgflow_serve_waiting {num}.0" not in client.get("/metrics")[1]:
        pass
    client.close()


def test_requests_beyond_the_queue_limit_are_refused_and_the_others_answered(predictor):
    with served(predictor, max_waiting=2) as server, ThreadPoolExecutor(3) as pool:
        with server.state.holding():
            waiting = [pool.submit(asking, server.endpoint.url) for _ in range(2)]
            until_waiting(server.endpoint.url, 2)
            status, answer = asking(server.endpoint.url)
            assert status == 429
            assert answer["detail"] == "2 requests are waiting already; ask again in a second"
        assert [each.result()[0] for each in waiting] == [200, 200]
        assert asking(server.endpoint.url)[0] == 200


def test_late_answer_times_out(predictor):
    with served(predictor, timeout=0.05) as server, server.state.holding():
        status, answer = asking(server.endpoint.url)
        assert status == 503
        assert answer["detail"] == "no answer within 0.05 s; ask again, or for less"
    assert not server.faults


def test_slow_request_times_out(predictor):
    head = b"POST /score HTTP/1.1\r\nHost: x\r\n" + JSON + b"Content-Length: 50\r\n\r\n"
    with served(predictor, hosts=["x"], timeout=0.1) as server:
        client = Client(server.endpoint.url)
        body_missing, head_missing = client.raw(head + b"{"), client.raw(head[:30])
        silent = client.raw()
        answer = b""
        while b"the body did not arrive within 0.1 s" not in answer:
            more = body_missing.recv(65_536)
            assert more, answer
            answer += more
        assert b" 408 " in answer
        assert b" 408 " in (late := read_all(head_missing))
        assert b"the headers did not arrive within 0.1 s" in late
        assert read_all(silent) == b""
        body_missing.close()


def test_queued_requests_are_answered_in_one_call(predictor, monkeypatch):
    calls, plain = [], Predictor.logits

    def counted(self, src, dst, t, relation=None):
        calls.append(len(src))
        return plain(self, src, dst, t, relation)

    monkeypatch.setattr(Predictor, "logits", counted)
    state = Held(predictor)
    answers = Answers(state, 100, lambda text: None)
    with state.holding():
        rest = [
            answers.ask(ScoreQuestion(src=[src], dst=[dst]))
            for src, dst in (("n0", "n6"), ("n2", "n7"), ("n4", 5))
        ]
        top = answers.ask(TopQuestion(src=["n0"], k=2))
        uneven = [
            answers.ask(ScoreQuestion(src=["n1"] * left, dst=["n8"] * right))
            for left, right in ((1, 2), (2, 1))
        ]
        gone = answers.ask(ScoreQuestion(src=["n3"], dst=["n7"]))
        gone.cancel()
    answers.close()
    assert calls == [8], "those that are wrong and the one that was given up are left out"
    assert (answers.num_answered, answers.num_turns) == (6, 1)
    expected = predictor.score(["n0", "n2"], ["n6", "n7"])
    found = [json.loads(each.result())["scores"][0] for each in rest[:2]]
    assert [row["src"] for row in found] == ["n0", "n2"]
    assert [row["logit"] for row in found] == expected.logit.tolist(), "bits as if asked alone"
    best = predictor.top_k("n0", 2).to_arrow().to_pylist()
    assert json.loads(top.result())["scores"] == best
    with pytest.raises(Refused, match="integers but this map's ids are strings"):
        rest[2].result()
    for each in uneven:
        with pytest.raises(Refused, match="src and dst must have one length"):
            each.result()
    with pytest.raises(Refused, match="the server is stopping"):
        answers.ask(ScoreQuestion(src=["n0"], dst=["n6"])).result()


def test_internal_error_is_reported_without_a_traceback_and_logged(predictor, monkeypatch):
    def failing(self, *asked):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(Predictor, "logits", failing)
    with served(predictor) as server:
        status, answer = asking(server.endpoint.url)
    assert status == 500
    assert answer == {"detail": "a fault in tgflow; see the server's log"}
    assert server.faults == ["/score failed: RuntimeError: secret detail"]


def test_pending_request_is_answered_while_the_server_closes(predictor):
    with ThreadPoolExecutor(1) as pool:
        with served(predictor) as server:
            with server.state.holding():
                answer = pool.submit(asking, server.endpoint.url)
                until_waiting(server.endpoint.url, 1)
                closing = threading.Thread(target=server.close)
                closing.start()
            closing.join()
            assert answer.result()[0] == 200
        with pytest.raises(ConnectionError):
            asking(server.endpoint.url)


def test_client_asks_all_questions():
    predictor = made_predictor()
    with served(predictor, TOKEN) as server, tg.serve.Client(server.endpoint.url, TOKEN) as client:
        scores = predictor.score(["n0"], ["n6"], 500).to_arrow().to_pylist()
        assert client.score(["n0"], ["n6"], at=500)["scores"] == scores
        best = predictor.top_k(["n0", "n1"], 2, exclude_known=True).to_arrow().to_pylist()
        assert client.top_k(["n0", "n1"], 2, exclude_known=True)["scores"] == best
        z = predictor.embed(["n3"]).tolist()
        assert client.embedding(["n3"])["embeddings"] == [
            {"id": "n3", "embedding": z[0], "is_new": False}
        ]
        assert len(client.neighbors(["n0"], 2)["neighbors"]) == 2
        why = json.loads(json.dumps(predictor.explain("n0", "n6").to_dict()))
        assert client.explain("n0", "n6") == {"parameters": 60} | why
        assert client.health()["position"] == 60
        with pytest.raises(tg.serve.AnswerError, match="422: k: input should be") as refused:
            client.top_k(["n0"], k=0)
        assert refused.value.status == 422
        with pytest.raises(tg.serve.AnswerError, match="401"):
            tg.serve.Client(server.endpoint.url).score(["n0"], ["n6"])
    with pytest.raises(ConnectionError, match="cannot be asked"):
        client.health()


def test_invalid_address_is_refused():
    with pytest.raises(ValueError, match="is no address: give one such as"):
        tg.serve.Client("localhost:8080")
