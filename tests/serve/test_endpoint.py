"""Server addresses, and when a token is required."""

import pytest

from tgflow.serve.endpoint import Endpoint, Hosts, read_token

TOKEN = "0123456789abcdef"


@pytest.fixture(autouse=True)
def no_token(monkeypatch):
    monkeypatch.delenv("TGFLOW_SERVE_TOKEN", raising=False)


@pytest.mark.parametrize(
    ("text", "host", "port", "is_own", "url"),
    [
        ("8080", "127.0.0.1", 8080, True, "http://127.0.0.1:8080"),
        ("0", "127.0.0.1", 0, True, "http://127.0.0.1:0"),
        ("127.3.2.1:80", "127.3.2.1", 80, True, "http://127.3.2.1:80"),
        ("localhost:80", "localhost", 80, True, "http://localhost:80"),
        ("[::1]:80", "::1", 80, True, "http://[::1]:80"),
        ("0.0.0.0:80", "0.0.0.0", 80, False, "http://0.0.0.0:80"),
        ("[::]:80", "::", 80, False, "http://[::]:80"),
        ("10.0.0.1:80", "10.0.0.1", 80, False, "http://10.0.0.1:80"),
        ("example.com:80", "example.com", 80, False, "http://example.com:80"),
    ],
)
def test_address_is_a_port_or_host_and_port(text, host, port, is_own, url):
    endpoint = Endpoint.parse(text)
    assert endpoint == (host, port)
    assert endpoint.is_own == is_own
    assert endpoint.url == url


@pytest.mark.parametrize("text", ["", "http", "80a", "65536", ":80", "::1:80", "host:", "a:b:1"])
def test_invalid_address_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"neither a port nor HOST:PORT; give one such as 8080"):
        Endpoint.parse(text)


@pytest.mark.parametrize(
    ("at", "listed", "accepted", "refused"),
    [
        ("8080", [], "localhost:8080 127.0.0.1:8080 [::1]:8080", "localhost 127.0.0.1:80 a:8080"),
        ("localhost:80", [], "localhost LOCALHOST:80 127.0.0.1", "localhost:81 localhost.evil"),
        ("[::1]:9", [], "[0:0:0:0:0:0:0:1]:9 localhost:9", "::1 [::1] [::1]:9:9"),
        ("a.b:8080", ["c", "d:1"], "a.b:8080 A.B:8080 c c:9 d:1", "a.b localhost:8080 d d:2"),
        ("0.0.0.0:8080", [], "10.0.0.1:9 [::5] localhost:1", "a 10.0.0.1.evil 127.0.0.1@a a:8080"),
        ("8080", ["*"], "anything 1.1.1.1", ""),
    ],
)
def test_hosts_are_the_bound_address_and_listed_names(at, listed, accepted, refused):
    hosts = Hosts(Endpoint.parse(at), listed)
    for host in accepted.split():
        assert hosts.refusal([host], []) is None, host
        assert hosts.refusal([host], [f"http://{host}"]) is None, "its own page"
    for host in refused.split():
        assert "the header Host has" in hosts.refusal([host], []), host
    if listed != ["*"]:
        assert "Origin has 'http://6.6.6.6'" in hosts.refusal(
            accepted.split()[:1], ["http://6.6.6.6"]
        )
    with pytest.raises(ValueError, match="'http://a' is neither HOST nor HOST:PORT: --serve-hosts"):
        Hosts(Endpoint.parse(at), ["http://a"])


def test_token_is_required_unless_listening_on_localhost(tmp_path, monkeypatch):
    here, everywhere = Endpoint.parse("8080"), Endpoint.parse("0.0.0.0:8080")
    assert read_token(here, None) is None
    with pytest.raises(
        ValueError, match=r"0\.0\.0\.0 can be .*: set .* --set serve\.token_file=FILE"
    ):
        read_token(everywhere, None)
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(everywhere, str(file)) == TOKEN
    assert read_token(here, str(file)) == TOKEN, "one that is there is asked for"
    monkeypatch.setenv("TGFLOW_SERVE_TOKEN", TOKEN[::-1])
    assert read_token(everywhere, None) == TOKEN[::-1]
    assert read_token(everywhere, str(file)) == TOKEN, "the file wins"


@pytest.mark.parametrize("token", ["", "   ", "short", "0123456789 abcdef", "0123456789äbcdef"])
def test_weak_or_unsendable_token_is_refused(tmp_path, token):
    file = tmp_path / "token"
    file.write_text(token, encoding="utf-8")
    with pytest.raises(ValueError, match="must have at least 16 characters, all of them visible"):
        read_token(Endpoint.parse("8080"), str(file))
