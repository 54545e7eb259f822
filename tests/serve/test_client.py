"""The Python client of served runs."""

from __future__ import annotations

import json

import pytest

import tgflow as tg
from helpers.served import made_predictor, served

pytest.importorskip("uvicorn", reason="uvicorn is not installed")

TOKEN = "0123456789abcdef"


def test_client_asks_all_questions():
    predictor = made_predictor()
    with served(predictor, TOKEN) as server, tg.serve.Client(server.endpoint.url, TOKEN) as client:
        scores = predictor.score(["n0"], ["n6"], 500).to_arrow().to_pylist()
        assert client.score(["n0"], ["n6"], at=500)["scores"] == scores
        best = predictor.top_k(["n0", "n1"], 2, exclude_known=True).to_arrow().to_pylist()
        assert client.top_k(["n0", "n1"], 2, exclude_known=True)["scores"] == best
        z = predictor.embed(["n3"]).tolist()
        assert client.embedding(["n3"])["embeddings"] == [{"id": "n3", "embedding": z[0]}]
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
